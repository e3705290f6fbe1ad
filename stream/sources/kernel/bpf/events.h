// SPDX-License-Identifier: (MIT OR GPL-2.0)
// What goes through the ring, whose it is, and the books of it.
enum flag {
    IN_CGROUP = 1, IN_TREE = 2, BEFORE_EXEC = 4, NO_PATH = 8, NO_TO_PATH = 16, TRUNCATED = 32,
    WALK_CUT = 64, UNREACHABLE = 128, COMPAT = 256, URING = 512, SHARED_FILES = 1024,
    THREAD_EXEC = 2048, OTHER_MOUNTS = 4096, OTHER_ROOT = 8192, OUTSIDE = 16384, CLOSER = 32768,
};
// The parts of an event's data, in this order. An exec's argv is in TO_PATH.
enum section { PATH, RESOLVED, BASE, TO_PATH, TO_BASE, SECTIONS };
enum scratch_slot { OF_SYSCALL, OF_EXEC, OF_URING, SLOTS };  // each program its own
enum state { FRESH = 1, RUNNING };

#define AT_FDCWD (-100)
#define ENOENT 2
#define EAGAIN 11
#define MAKES_FILE 020000100  // O_CREAT or O_TMPFILE
#define MAY_WRITE 01003  // O_WRONLY, O_RDWR or O_TRUNC
#define PATH_ROOM 4097  // so that a path of 4,095 bytes, the longest one, is seen to be whole
#define ARGV_ROOM 16383
#define NAME_ROOM 256
#define WALK_ROOM 4352
#define WALK_STEPS 256  // a power of two
#define HEADER 56  // bytes of an event before its data

struct event {
    u8 call, detail;
    u16 flags;
    u32 tid, pid;
    s32 ret;
    u64 ts;
    u32 open_flags, mode;
    // size; uid and gid; fork's child; exit's status; whom it reached into; the request of io_uring
    u64 extra;
    u16 lengths[SECTIONS];
    u16 around;  // bytes of what is around the caller, behind the sections
    u32 resolve;
    char data[32768 - HEADER - 80];
    u32 end, letter, left, was_entered;  // from here on it stays in the kernel
    u64 args[8];
};

// What decides about a call of a process, besides the file or address that it is about.
struct around {
    u64 capabilities;
    u64 security[8];  // what the security modules keep of it: the first words
    u32 user, mounts, network, users, seccomp, tracer, was_entered, unused;
};

struct books {
    u64 lost, lost_forks, foreign, unseen_uring;
    u64 seen[MOST_CALLS], dropped[MOST_CALLS];
};
struct trail {  // of a walk: what it went by, and what that must still be in the end
    struct { u64 dentry, sequence; } at[WALK_STEPS];
};
struct life { u64 start; u32 pid, unused; };
struct world {  // how the files lie: whether the run has mounted something, and how it found them
    u64 has_mounted, root_dentry, root_mount, space, changes;
};

struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 16 << 20); } ring SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, SLOTS);
    __type(key, u32);
    __type(value, struct event);
} scratch SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, SLOTS);
    __type(key, u32);
    __type(value, struct trail);
} trails SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct books);
} books SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 65536);
    __type(key, u32);
    __type(value, u8);
} tree SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 1024);
    __type(key, struct life);
    __type(value, u8);
} ended SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_CGROUP_ARRAY);
    __uint(max_entries, 1);
    __uint(key_size, 4);
    __uint(value_size, 4);
} cgroup SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct world);
} world SEC(".maps");
struct {  // threads that have entered a call, where somebody looks closer
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 65536);
    __type(key, u32);
    __type(value, u8);
} entered SEC(".maps");
#ifdef WITH_URING
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 16384);
    __type(key, u64);
    __type(value, u8);
} requests SEC(".maps");
#endif

// A clamp that neither the compiler drops nor the verifier misreads.
#define AT_MOST(value, most) ({                                                                  \
    u64 __v = (value);                                                                           \
    asm volatile("if %0 <= %1 goto +1; %0 = %1" : "+r"(__v) : "i"(most));                        \
    __v; })

static __always_inline struct books *the_books(void)
{
    u32 zero = 0;
    return bpf_map_lookup_elem(&books, &zero);
}

static __always_inline struct world *the_world(void)
{
    u32 zero = 0;
    return bpf_map_lookup_elem(&world, &zero);
}

static __always_inline int is_guard(void)
{
    struct bpf_pidns_info in = {};
    return !bpf_get_ns_current_pid_tgid(ro.namespace_device, ro.namespace_inode, &in, sizeof in)
        && in.tgid == ro.guard;
}

// Two independent answers: the control group that it is in, and whom it descends from.
static __always_inline u32 scope_of(u32 pid)
{
    u32 found = 0;
    u8 *state = bpf_map_lookup_elem(&tree, &pid);
    if (state)
        found = *state == FRESH ? IN_TREE | BEFORE_EXEC : IN_TREE;
    if (ro.use_cgroup && bpf_current_task_under_cgroup(&cgroup, 0) == 1)
        found |= IN_CGROUP;
    return found == IN_CGROUP && is_guard() ? 0 : found;
}

static __always_inline void begin(struct event *e, u8 call, u32 scope)
{
    u64 ids = bpf_get_current_pid_tgid();
    e->call = call;
    e->detail = 0;
    e->flags = scope;
    e->tid = (u32)ids;
    e->pid = ids >> 32;
    e->ret = 0;
    e->ts = bpf_ktime_get_ns();
    e->open_flags = e->mode = e->resolve = 0;
    e->extra = 0;
    e->lengths[PATH] = e->lengths[RESOLVED] = e->lengths[BASE] = 0;
    e->lengths[TO_PATH] = e->lengths[TO_BASE] = e->around = 0;
}

static __always_inline struct event *begin_long(u32 slot, u8 call, u32 scope)
{
    struct event *e = bpf_map_lookup_elem(&scratch, &slot);
    if (!e)
        return 0;
    begin(e, call, scope);
    e->end = 0;
    return e;
}

// How it is opened. The mode is meant only where a file is made; else whatever lay there is no news.
static __always_inline void put_open(struct event *e, u64 flags, u64 mode, u64 resolve)
{
    e->open_flags = flags;
    e->mode = flags & MAKES_FILE ? mode & 07777 : 0;
    e->resolve = resolve;
}

static __always_inline int put(void *e, u64 size, u8 call)
{
    struct books *b = the_books();
    if (!b)
        return 0;
    u32 kind = ro.shapes[call & (SHAPES - 1)].books & (MOST_CALLS - 1);
    // Once for so many bytes that wait: to wake somebody up costs more than the event does. Once
    // too much waits, that is what holds those back who fill the ring.
    u64 waits = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA);
    int is_due = waits > ro.much || (waits ^ (waits + size)) & ~(u64)(ro.wake - 1);
    u64 wake = is_due ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
    b->seen[kind]++;
    if (bpf_ringbuf_output(&ring, e, size, wake)) {
        b->dropped[kind]++;
        b->lost++;
    }
    return 0;
}

// A function of its own, so that it is verified once.
__attribute__((noinline)) int put_around(u32 slot)
{
    struct event *e = bpf_map_lookup_elem(&scratch, &slot);
    struct task_struct *task = bpf_get_current_task_btf();
    struct around around = {};
    if (!e)
        return 0;
    const struct cred *cred = BPF_CORE_READ(task, cred);
    // Eight bytes in every kernel, whatever they are called.
    bpf_probe_read_kernel(&around.capabilities, sizeof around.capabilities,
                          (void *)cred + bpf_core_field_offset(struct cred, cap_effective));
    if (bpf_core_field_exists(struct cred, security))
        bpf_probe_read_kernel(around.security, sizeof around.security,
                              BPF_CORE_READ(cred, security));
    around.user = BPF_CORE_READ(cred, fsuid.val);
    around.mounts = BPF_CORE_READ(task, nsproxy, mnt_ns, ns.inum);
    around.network = BPF_CORE_READ(task, nsproxy, net_ns, ns.inum);
    around.users = BPF_CORE_READ(cred, user_ns, ns.inum);
    if (bpf_core_field_exists(struct task_struct, seccomp))
        around.seccomp = BPF_CORE_READ(task, seccomp.mode);
    around.tracer = BPF_CORE_READ(task, ptrace);
    around.was_entered = e->was_entered;
    u64 at = AT_MOST((u64)*(volatile u32 *)&e->end, sizeof(e->data) - sizeof around);
    bpf_probe_read_kernel(&e->data[at], sizeof around, &around);
    e->around = sizeof around;
    e->flags |= CLOSER;
    e->end = at + sizeof around;
    return 0;
}

static __always_inline int put_long(struct event *e)
{
    // That a file is not there is no refusal, and fails most calls.
    if (ro.looks_closer && (e->call == EXEC || (e->ret < 0 && e->ret != -ENOENT && !(e->flags & URING))))
        put_around(e->call == EXEC ? OF_EXEC : OF_SYSCALL);
    u64 size = AT_MOST((u64)*(volatile u32 *)&e->end, sizeof(e->data));
    return put(e, HEADER + size, e->call);
}

static __always_inline int put_short(u8 call, u32 scope, u64 extra, s32 ret)
{
    struct event *e = 0;
    char header[HEADER] __attribute__((aligned(8)));
    e = (void *)header;
    begin(e, call, scope);
    e->extra = extra;
    e->ret = ret;
    return put(header, HEADER, call);
}
