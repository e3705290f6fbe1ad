// SPDX-License-Identifier: (MIT OR GPL-2.0)
// Where a path starts from. A relative one from a folder; and one that begins with /proc/self/fd/N,
// or its like, from what the caller has there: only while the process lives can that be told.
#define IN_ROOT 16  // of openat2: an absolute path starts from the folder, too
#define VIEW_ROOM 64  // /proc/thread-self/fd/2147483647/ is the longest
#define LETTER(text, at) ((u8)(text)[(at) & (VIEW_ROOM - 1)])

// Up to eight letters as one number: a string would need a map of its own.
#define ONE(word, i) ((u64)((i) < sizeof word - 1 ? (u8)word[(i) % sizeof word] : 0) << 8 * (i))
#define EIGHT(word)                                                                              \
    (ONE(word, 0) | ONE(word, 1) | ONE(word, 2) | ONE(word, 3) | ONE(word, 4) | ONE(word, 5)     \
     | ONE(word, 6) | ONE(word, 7))
#define BEGINS(eight, word) (!(((eight) ^ EIGHT(word)) << (72 - 8 * sizeof word)))

static __always_inline int is_end(u8 letter)
{
    return !letter || letter == '/';
}

// `at` is behind the digits then. As /proc reads a name: no zero leads.
static __always_inline s64 number_in(const char *text, volatile u32 *at)
{
    u32 first = *at;
    s64 number = 0;
    for (int i = 0; i < 10; i++) {
        u8 digit = LETTER(text, *at) - '0';
        if (digit > 9)
            break;
        number = number * 10 + digit;
        *at += 1;
    }
    u32 digits = *at - first;
    return !digits || number >> 31 || (digits > 1 && LETTER(text, first) == '0') ? -1 : number;
}

// Whose, by how a path begins; `at` is behind that then. Threads may have files of their own: self
// is the first one. A number says nothing where processes are numbered in another way than ours.
static __always_inline struct task_struct *owner_in(const char *text, volatile u32 *at)
{
    struct task_struct *task = bpf_get_current_task_btf();
    struct bpf_pidns_info in = {};
    const u64 *eights = (const u64 *)text;
    if (BEGINS(eights[0], "/proc/th") && BEGINS(eights[1], "read-sel") && BEGINS(eights[2], "f/")) {
        *at = 18;
        return task;
    }
    if (BEGINS(eights[0], "/dev/fd/")) {
        *at = 5;
    } else if (BEGINS(eights[0], "/proc/se") && BEGINS(eights[1], "lf/")) {
        *at = 11;
    } else if (BEGINS(eights[0], "/proc/")) {
        *at = 6;
        s64 pid = number_in(text, at);
        if (pid < 0 || LETTER(text, *at) != '/'
            || bpf_get_ns_current_pid_tgid(ro.namespace_device, ro.namespace_inode, &in, sizeof in)
            || in.tgid != pid)
            return 0;
        *at += 1;
    } else {
        return 0;
    }
    return BPF_CORE_READ(task, group_leader);
}

__attribute__((noinline)) int walk_view(u32 slot, u32 from, u32 section)
{
    struct event *e = bpf_map_lookup_elem(&scratch, &slot);
    char text[VIEW_ROOM] __attribute__((aligned(8))) = {};
    if (!e)
        return 0;
    u64 length = e->lengths[from & 3];  // its NUL may be gone: what follows lies close to it
    u64 start = from == PATH ? 0 : (u64)*(volatile u32 *)&e->end - length;
    start = AT_MOST(start, sizeof(e->data) - VIEW_ROOM);
    bpf_probe_read_kernel(text, AT_MOST(length, VIEW_ROOM - 1), &e->data[start]);
    struct task_struct *owner = owner_in(text, &e->letter);
    if (!owner)
        return 0;
    u32 at = e->letter;
    u64 what = 0;
    for (int i = 0; i < 5; i++)
        what |= (u64)LETTER(text, at + i) << 8 * i;
    e->letter = at + 3;
    if (BEGINS(what, "cwd") && is_end(what >> 24))
        return walk_cwd(slot, section, owner);
    if (BEGINS(what, "root") && is_end(what >> 32))
        return walk_root(slot, section, owner);
    if (!BEGINS(what, "fd/"))
        return 0;
    s64 fd = number_in(text, &e->letter);
    return fd >= 0 && is_end(LETTER(text, e->letter)) ? walk_file(slot, section, file_of(owner, fd)) : 0;
}

// `begins`: as put_text told of the path in section `from`.
static __always_inline void put_base(struct event *e, u32 slot, int begins, u32 from, int dirfd)
{
    u32 section = from == PATH ? BASE : TO_BASE;
    if (begins == RELATIVE || (begins > RELATIVE && e->resolve & IN_ROOT)) {
        walk_base(slot, section, dirfd);
        walk_other_root(slot, SECTIONS);
    } else if (begins >= ABSOLUTE && !walk_other_root(slot, section) && begins == BY_VIEW) {
        walk_view(slot, from, section);
    }
}
