// SPDX-License-Identifier: (MIT OR GPL-2.0)
// Paths as they were given, and as they lie in the kernel.
enum { UNREAD = -1, RELATIVE, ABSOLUTE, BY_VIEW };  // the last one: perhaps, /p or /d

// The offset lies in map memory: the verifier forgets its range at each load, and states merge.
// These are functions of their own so that they are verified once.
__attribute__((noinline)) int put_text(u32 slot, u32 section, u64 from, u32 from_kernel)
{
    struct event *e = bpf_map_lookup_elem(&scratch, &slot);
    if (!e)
        return 0;
    u64 at = AT_MOST((u64)*(volatile u32 *)&e->end, sizeof(e->data) - PATH_ROOM);
    long n = from_kernel ? bpf_probe_read_kernel_str(&e->data[at], PATH_ROOM, (void *)from)
                         : bpf_probe_read_user_str(&e->data[at], PATH_ROOM, (void *)from);
    if (n <= 0) {
        e->flags |= section == PATH ? NO_PATH : NO_TO_PATH;
        return UNREAD;
    }
    if (n == PATH_ROOM)
        e->flags |= TRUNCATED;
    e->lengths[section & 3] = n - 1;
    e->end = at + n - 1;
    if (n == 1 || e->data[at] != '/')
        return RELATIVE;
    return e->data[at + 1] == 'p' || e->data[at + 1] == 'd' ? BY_VIEW : ABSOLUTE;
}

// Where the run has mounted something, or is among mounts of its own, any file may have any name.
static __always_inline int is_elsewhere(struct mnt_namespace *space)
{
    struct world *w = the_world();
    return !w || w->has_mounted || READ(space, ns.inum) != ro.mounts;
}

static __always_inline int on_mount(struct task_struct *task)
{
    struct world *w = the_world();
    if (!w || w->has_mounted)
        return 0;
    // What is mounted among other mounts may come to ours: that these have changed is to be seen.
    struct mnt_namespace *space = (void *)w->space;
    if (!space || BPF_CORE_READ(task, nsproxy, mnt_ns, ns.inum) == ro.mounts
        || BPF_CORE_READ(space, event) != w->changes)
        w->has_mounted = 1;
    return 0;
}

// What a walk needs of a name, and of a mount, lies close together: one read instead of several.
// A short name lies in its dentry, behind the pointer that leads to it.
#define SHORT 24  // bytes, with the NUL
struct name_of {
    void *hashed;
    struct dentry *parent;
    u64 hash_and_length;
    const unsigned char *name;
    void *inode;
    u64 letters[SHORT / 8];
};
struct place_of { struct mount *parent; struct dentry *mountpoint, *root; };

static __always_inline void read_name(struct name_of *to, struct dentry *d)
{
    u64 first = bpf_core_field_offset(struct dentry, d_hash.pprev);
    if (bpf_core_field_offset(struct dentry, d_parent) == first + 8
        && bpf_core_field_offset(struct dentry, d_name.name) == first + 24) {
        READ_WORDS(to, (void *)d + first);
        if ((void *)to->name != (void *)d + first + __builtin_offsetof(struct name_of, letters))
            to->hash_and_length = 0;
    } else {
        to->hashed = BPF_CORE_READ(d, d_hash.pprev);
        to->parent = BPF_CORE_READ(d, d_parent);
        to->name = BPF_CORE_READ(d, d_name.name);
    }
}

#define BYTES(value) (0x0101010101010101ULL * (value))

// The length of a name that was read with its dentry, which is at `to` then; 0: it has to be read
// by itself. While somebody renames it, the length may be of one name and the letters of another.
static __always_inline u32 put_short_name(char *to, struct name_of *own)
{
    u64 length = own->hash_and_length >> 32, wrong = 0;
    if (!length || length >= SHORT)
        return 0;
    for (u32 i = 0; i < SHORT / 8; i++) {
        u64 word = own->letters[i], kept = ~0ULL;
        if (length < 8 * i + 8) {
            u64 left = length > 8 * i ? length - 8 * i : 0;
            kept = (1ULL << 8 * left) - 1;
            if (length >= 8 * i)
                wrong |= (word >> 8 * left) & 0xff;
        }
        u64 with = word | ~kept;
        wrong |= (with - BYTES(1)) & ~with & BYTES(0x80);
        ((u64 *)to)[i] = word & kept;
    }
    return wrong ? 0 : length + 1;
}

static __always_inline void read_place(struct place_of *to, struct mount *m)
{
    u64 first = bpf_core_field_offset(struct mount, mnt_parent);
    if (bpf_core_field_offset(struct mount, mnt_mountpoint) == first + 8
        && bpf_core_field_offset(struct mount, mnt.mnt_root) == first + 16) {
        READ_WORDS(to, (void *)m + first);
    } else {
        to->parent = BPF_CORE_READ(m, mnt_parent);
        to->mountpoint = BPF_CORE_READ(m, mnt_mountpoint);
        to->root = BPF_CORE_READ(m, mnt.mnt_root);
    }
}

#define NOWHERE 0xeffffff7  // a namespace of mounts without a name, since Linux 6.18; before, 0

struct walker {
    struct event *event;
    struct trail *trail;
    struct dentry *dentry;
    struct mount *mount;
    struct place_of place;  // of that mount
    u32 start, flag;
};

// What is read before this is read before what is read after it.
static __always_inline void in_order(struct walker *w)
{
#if defined(__TARGET_ARCH_x86)
    asm volatile("" : : : "memory");  // the processor does so
#else
    // Our compiler does not know this one: 0 is added, and what was there is fetched.
    asm volatile("r1 = %0; r2 = 0; .byte 0xdb, 0x21, 0, 0; .long 1"
                 : : "r"(w->event->args) : "r1", "r2", "memory");
#endif
}

// One name, or one mount that is left behind. 1: done; `flag` says what is wrong with it.
static __always_inline int step(u32 number, struct walker *w)
{
    struct event *e = w->event;
    volatile u32 *end = &e->end, *left = &e->left;
    if (!*left)
        return 1;
    *left -= 1;
    u32 at_step = *left & (WALK_STEPS - 1);
    struct dentry *d = w->dentry;
    if (d == w->place.root) {
        struct mount *m = w->mount, *parent = w->place.parent;
        w->trail->at[at_step].dentry = 0;
        if (parent == m) {
            struct mnt_namespace *space = READ(m, mnt_ns);
            w->flag = !space || (u64)space >= (u64)-4095 ? UNREACHABLE : 0;
            if (!w->flag && is_elsewhere(space)) {
                u32 number = READ(space, ns.inum);
                e->flags |= OTHER_MOUNTS;
                if (!number || number == NOWHERE)  // a tree that was copied, and hangs nowhere
                    w->flag = UNREACHABLE;
            }
            return 1;
        }
        w->dentry = w->place.mountpoint;
        w->mount = parent;
        read_place(&w->place, parent);
        return 0;
    }
    struct name_of own = {};
    u32 sequence = READ(d, d_seq.seqcount.sequence);
    in_order(w);
    read_name(&own, d);
    w->trail->at[at_step].dentry = (u64)d;
    w->trail->at[at_step].sequence = sequence;
    if (own.parent == d) {
        w->flag = UNREACHABLE;
        return 1;
    }
    u64 at = *end;
    if (at > sizeof(e->data) - NAME_ROOM || at - w->start > WALK_ROOM - NAME_ROOM)
        return 1;
    if (!own.hashed && at == w->start)
        e->flags |= UNREACHABLE;  // its last name is gone: what follows is where it was
    long n = put_short_name(&e->data[at], &own);
    if (!n)
        n = bpf_probe_read_kernel_str(&e->data[at], NAME_ROOM, own.name);
    if (n <= 0)
        return 1;
    *end = at + n;
    w->dentry = own.parent;
    return 0;
}

// Back over the trail: 1 at the first name that is, or was, being changed; or where it began.
static __always_inline int step_back(u32 number, struct walker *w)
{
    volatile u32 *left = &w->event->left;
    if (*left >= WALK_STEPS)
        return 1;
    u32 at_step = *left & (WALK_STEPS - 1);
    struct dentry *d = (void *)w->trail->at[at_step].dentry;
    u64 sequence = w->trail->at[at_step].sequence;
    if (d && (sequence & 1 || READ(d, d_seq.seqcount.sequence) != sequence))
        return 1;
    *left += 1;
    return 0;
}

// As often as there are steps, until one says that it was the last.
#ifdef DIRECT
// A call for each would cost as much as the step does. A newer kernel lets a program loop by itself
// where it may be ended anywhere, by an instruction that our compiler does not know. It checks such
// a loop once, if it does not know how often that goes round: so what is left is counted in a map.
#define REPEAT(what, w) ({                                                                       \
    __label__ ended;                                                                             \
    do                                                                                           \
        asm volatile goto("1: .byte 0xe5, 0; .long ((%l[ended] - 1b - 8) / 8) & 0xffff; .short 0" \
                          : : : : ended);                                                        \
    while (!what(0, w));                                                                         \
ended:; })
#else
#define REPEAT(what, w) bpf_loop(WALK_STEPS + 1, what, w, 0)
#endif

// Names from the leaf to the root, each with its NUL, across mounts; user space turns them round.
// A path that cannot be followed to the root of all mounts leaves nothing: half would mislead.
// -1: somebody renamed what it went by, so that it may never have been a path.
__attribute__((noinline)) int walk_once(u32 slot, u32 section, u64 dentry, u64 vfsmount)
{
    struct event *e = bpf_map_lookup_elem(&scratch, &slot);
    struct trail *trail = bpf_map_lookup_elem(&trails, &slot);
    if (!e || !trail || !dentry || !vfsmount)
        return 0;
    struct mount *m = (void *)vfsmount - bpf_core_field_offset(struct mount, mnt);
    volatile u32 *end = &e->end, *left = &e->left;
    u32 start = *end;
    u16 flags = e->flags;
    struct walker w = {e, trail, (void *)dentry, m, {}, start, WALK_CUT};
    read_place(&w.place, m);
    *left = WALK_STEPS;
    REPEAT(step, &w);
    in_order(&w);
    // All names that are now what they were when they were read were so at one moment.
    REPEAT(step_back, &w);
    if (*left < WALK_STEPS) {
        e->flags = flags;
        *end = start;
        return -1;
    }
    if (w.flag) {
        e->flags |= w.flag;
        *end = start;
        return 0;
    }
    if (*end == start) {  // the root itself: a name of no length
        u64 at = AT_MOST((u64)start, sizeof(e->data) - NAME_ROOM);
        e->data[at] = 0;
        *end = at + 1;
    }
    u32 length = *end - start;
    if (section < SECTIONS)
        e->lengths[section] = length;
    return length;
}

static __always_inline int walk(u32 slot, u32 section, u64 dentry, u64 vfsmount)
{
    struct event *e = bpf_map_lookup_elem(&scratch, &slot);
    for (int i = 0; e && i < 4; i++) {
        int length = walk_once(slot, section, dentry, vfsmount);
        if (length >= 0)
            return length;
    }
    if (e)
        e->flags |= WALK_CUT;
    return 0;
}

static __always_inline struct file *file_of(struct task_struct *task, int fd)
{
    struct fdtable *table = BPF_CORE_READ(task, files, fdt);
    struct file **files = BPF_CORE_READ(table, fd), *file = 0;
    if (fd >= 0 && (u32)fd < BPF_CORE_READ(table, max_fds))
        bpf_probe_read_kernel(&file, sizeof file, &files[fd]);
    return file;
}

// The same of whoever runs: the kernel knows what it is, and lets it be read as it lies there.
static __always_inline struct file *own_file(struct task_struct *task, int fd)
{
    struct fdtable *table = task->files->fdt;
    struct file *file = 0;
    if (fd >= 0 && (u32)fd < table->max_fds)
        READ_WORDS(&file, &table->fd[fd]);
    return file;
}

static __always_inline int walk_file(u32 slot, u32 section, struct file *file)
{
    struct path path;
    READ_WORDS(&path, &file->f_path);
    return walk(slot, section, (u64)path.dentry, (u64)path.mnt);
}

static __always_inline int walk_cwd(u32 slot, u32 section, struct task_struct *task)
{
    return walk(slot, section, (u64)BPF_CORE_READ(task, fs, pwd.dentry),
                (u64)BPF_CORE_READ(task, fs, pwd.mnt));
}

static __always_inline int walk_root(u32 slot, u32 section, struct task_struct *task)
{
    return walk(slot, section, (u64)BPF_CORE_READ(task, fs, root.dentry),
                (u64)BPF_CORE_READ(task, fs, root.mnt));
}

// The root that its paths start from, if that is another one than the run began with. Where no
// section is named, only that is told. The root of a namespace of mounts is none: it is its `/`.
__attribute__((noinline)) int walk_other_root(u32 slot, u32 section)
{
    struct event *e = bpf_map_lookup_elem(&scratch, &slot);
    struct task_struct *task = bpf_get_current_task_btf();
    struct world *w = the_world();
    if (!e || !w)
        return 0;
    if (w->has_mounted || task->nsproxy->mnt_ns->ns.inum != ro.mounts)
        e->flags |= OTHER_MOUNTS;
    struct fs_struct *fs = task->fs;
    if (!w->root_dentry
        || (w->root_dentry == (u64)fs->root.dentry && w->root_mount == (u64)fs->root.mnt))
        return 0;
    u32 start = *(volatile u32 *)&e->end, length = walk_root(slot, section, task);
    if (length == 1 || section >= SECTIONS)
        *(volatile u32 *)&e->end = start;
    if (length == 1) {
        if (section < SECTIONS)
            e->lengths[section] = 0;
        return 0;
    }
    e->flags |= OTHER_ROOT;  // also where nobody knows which
    return 1;
}

__attribute__((noinline)) int walk_base(u32 slot, u32 section, int dirfd)
{
    struct task_struct *task = bpf_get_current_task_btf();
    return dirfd == AT_FDCWD ? walk_cwd(slot, section, task)
                             : walk_file(slot, section, file_of(task, dirfd));
}
