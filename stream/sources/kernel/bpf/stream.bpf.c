// SPDX-License-Identifier: (MIT OR GPL-2.0)
// What a run does to files, peers and processes, seen where a system call returns.
//
// At sys_exit the registers still hold the arguments: one program sees a call and its result, and
// nothing has to be remembered between the two. Paths are resolved here, while the file is open
// and the folder is where it is: user space would be late. Only raw tracepoints with BTF are used.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
typedef __u8 u8;
typedef __s8 s8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;

// Of the kernel's structures only what is used: the loader finds where it lies.
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct qstr { const unsigned char *name; };
struct hlist_bl_node { struct hlist_bl_node **pprev; };
struct super_block { u32 s_dev; };
struct inode { unsigned long i_ino; struct super_block *i_sb; };
struct dentry { struct hlist_bl_node d_hash; struct dentry *d_parent; struct qstr d_name; };
struct vfsmount { struct dentry *mnt_root; };
struct mnt_namespace;
struct mount {
    struct mount *mnt_parent;
    struct dentry *mnt_mountpoint;
    struct vfsmount mnt;
    struct mnt_namespace *mnt_ns;
};
struct path { struct vfsmount *mnt; struct dentry *dentry; };
struct file { struct path f_path; struct inode *f_inode; };
struct fdtable { unsigned int max_fds; struct file **fd; };
struct files_struct { struct fdtable *fdt; };
struct fs_struct { struct path pwd; };
typedef struct { int counter; } atomic_t;
struct signal_struct { atomic_t live; unsigned int flags; int group_exit_code; };
struct mm_struct { unsigned long arg_start, arg_end; struct file *exe_file; };
struct thread_info { unsigned long flags; u32 status; };
struct task_struct {
    struct thread_info thread_info;
    int pid, tgid, exit_code;
    u64 start_boottime;
    struct task_struct *group_leader;
    struct files_struct *files;
    struct fs_struct *fs;
    struct mm_struct *mm;
    struct signal_struct *signal;
};
struct linux_binprm { const char *filename; };
#if defined(__TARGET_ARCH_x86)
struct pt_regs { unsigned long bx, cx, dx, si, di, bp, r8, r9, r10, orig_ax; };
#else
struct pt_regs { u64 regs[31]; u64 orig_x0; s32 syscallno; };
#endif
struct filename { const char *name; };
struct open_how___kernel { u64 flags, mode, resolve; };
struct io_cqe { u64 user_data; };
struct io_kiocb { u8 opcode; struct io_cqe cqe; };
struct io_uring_cqe { s32 res; };
struct io_open { int dfd; struct filename *filename; struct open_how___kernel how; };
struct io_connect { void *addr; int addr_len; };
struct io_unlink { int dfd, flags; struct filename *filename; };
struct io_mkdir { int dfd; u16 mode; struct filename *filename; };
struct io_rename { int old_dfd, new_dfd; struct filename *oldpath, *newpath; int flags; };
struct io_link { int old_dfd, new_dfd; struct filename *oldpath, *newpath; int flags; };
#pragma clang attribute pop

// In this order in decode.py as well: a test compares them.
enum call {
    NO_CALL, OPEN, CREAT, OPENAT, OPENAT2, UNLINK, UNLINKAT, RENAME, RENAMEAT, RENAMEAT2, MKDIR,
    MKDIRAT, RMDIR, LINK, LINKAT, SYMLINK, SYMLINKAT, CHMOD, FCHMOD, FCHMODAT, FCHMODAT2, CHOWN,
    FCHOWN, LCHOWN, FCHOWNAT, TRUNCATE, FTRUNCATE, MKNOD, MKNODAT, CONNECT, SENDTO, SENDMSG,
    SENDMMSG, EXECVE, EXECVEAT, IO_URING_SETUP, EXEC, FORK, EXIT, WROTE, URING_RESULT,
    SOCKETCALL, CHOWN16, FCHOWN16, LCHOWN16, TRUNCATE64, FTRUNCATE64,
    WRITE_FIRST, WRITE_SECOND, WRITE_THIRD,  // which argument is the descriptor written to
};
enum flag {
    IN_CGROUP = 1, IN_TREE = 2, BEFORE_EXEC = 4, NO_PATH = 8, NO_TO_PATH = 16, TRUNCATED = 32,
    WALK_CUT = 64, UNREACHABLE = 128, COMPAT = 256, URING = 512, FIRST_ONLY = 1024,
    THREAD_EXEC = 2048,
};
enum section { PATH, RESOLVED, BASE, TO_PATH, TO_BASE, SECTIONS };  // in this order; argv in TO_PATH
enum scratch_slot { OF_SYSCALL, OF_EXEC, OF_URING, SLOTS };  // each program its own
enum state { FRESH = 1, RUNNING };

#define AT_FDCWD (-100)
#define PATH_ROOM 4097  // so that a path of 4,095 bytes, the longest one, is seen to be whole
#define ARGV_ROOM 16383
#define NAME_ROOM 256
#define WALK_ROOM 4352
#define WALK_STEPS 256
#define HEADER 56
#define MOST_CALLS 16  // kinds of events in the books
#define WATCHES 4

struct event {
    u8 call, detail;
    u16 flags;
    u32 tid, pid;
    s32 ret;
    u64 ts;
    u32 open_flags, mode;
    u64 extra;  // size; uid and gid; fork's child; exit's status; the request of io_uring
    u16 lengths[SECTIONS];
    u16 unused;
    u32 resolve;
    char data[32768 - HEADER - 72];
    u32 end;  // from here on it stays in the kernel
    u64 args[8];
};

struct books {
    u64 lost, lost_forks, foreign, unseen_uring;
    u64 seen[MOST_CALLS], dropped[MOST_CALLS];
};
struct life { u64 start; u32 pid, unused; };
struct watch { u64 device, inode; };

struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 16 << 20); } ring SEC(".maps");
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, SLOTS);
    __type(key, u32);
    __type(value, struct event);
} scratch SEC(".maps");
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
#ifdef WITH_URING
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 16384);
    __type(key, u64);
    __type(value, u8);
} requests SEC(".maps");
#endif

// Which argument is what. CWD and NONE are no arguments: they name the two that are made up.
enum { CWD = 6, NONE = 7 };
struct shape { u8 dirfd, path, to_dirfd, to_path, flags, mode, size, books; };
#define SHAPE(d, p, d2, p2, f, m, s, b) {d, p, d2, p2, f, m, s, b}

// One variable, so that its parts lie where they are declared: user space writes the first five.
const volatile struct {
    u64 namespace_device, namespace_inode;
    u32 guard, use_cgroup, wake, watched;
    struct watch watches[WATCHES];
    u8 native[512], compat[512];
    struct shape shapes[64];
} ro = {
#if defined(__TARGET_ARCH_x86)
    .native = {
        [2] = OPEN, [85] = CREAT, [257] = OPENAT, [437] = OPENAT2, [87] = UNLINK, [263] = UNLINKAT,
        [82] = RENAME, [264] = RENAMEAT, [316] = RENAMEAT2, [83] = MKDIR, [258] = MKDIRAT,
        [84] = RMDIR, [86] = LINK, [265] = LINKAT, [88] = SYMLINK, [266] = SYMLINKAT, [90] = CHMOD,
        [91] = FCHMOD, [268] = FCHMODAT, [452] = FCHMODAT2, [92] = CHOWN, [93] = FCHOWN,
        [94] = LCHOWN, [260] = FCHOWNAT, [76] = TRUNCATE, [77] = FTRUNCATE, [133] = MKNOD,
        [259] = MKNODAT, [42] = CONNECT, [44] = SENDTO, [46] = SENDMSG, [307] = SENDMMSG,
        [59] = EXECVE, [322] = EXECVEAT, [425] = IO_URING_SETUP,
        // write pwrite64 writev pwritev pwritev2 sendfile vmsplice, tee, splice copy_file_range
        [1] = WRITE_FIRST, [18] = WRITE_FIRST, [20] = WRITE_FIRST, [296] = WRITE_FIRST,
        [328] = WRITE_FIRST, [40] = WRITE_FIRST, [278] = WRITE_FIRST, [276] = WRITE_SECOND,
        [275] = WRITE_THIRD, [326] = WRITE_THIRD,
    },
    .compat = {
        [5] = OPEN, [8] = CREAT, [295] = OPENAT, [437] = OPENAT2, [10] = UNLINK, [301] = UNLINKAT,
        [38] = RENAME, [302] = RENAMEAT, [353] = RENAMEAT2, [39] = MKDIR, [296] = MKDIRAT,
        [40] = RMDIR, [9] = LINK, [303] = LINKAT, [83] = SYMLINK, [304] = SYMLINKAT, [15] = CHMOD,
        [94] = FCHMOD, [306] = FCHMODAT, [452] = FCHMODAT2, [182] = CHOWN16, [95] = FCHOWN16,
        [16] = LCHOWN16, [212] = CHOWN, [207] = FCHOWN, [198] = LCHOWN, [298] = FCHOWNAT,
        [92] = TRUNCATE, [93] = FTRUNCATE, [193] = TRUNCATE64, [194] = FTRUNCATE64, [14] = MKNOD,
        [297] = MKNODAT, [362] = CONNECT, [369] = SENDTO, [370] = SENDMSG, [345] = SENDMMSG,
        [11] = EXECVE, [358] = EXECVEAT, [425] = IO_URING_SETUP, [102] = SOCKETCALL,
        [4] = WRITE_FIRST, [181] = WRITE_FIRST, [146] = WRITE_FIRST, [334] = WRITE_FIRST,
        [379] = WRITE_FIRST, [187] = WRITE_FIRST, [239] = WRITE_FIRST, [316] = WRITE_FIRST,
        [315] = WRITE_SECOND, [313] = WRITE_THIRD, [377] = WRITE_THIRD,
    },
#else
    .native = {
        [56] = OPENAT, [437] = OPENAT2, [35] = UNLINKAT, [38] = RENAMEAT, [276] = RENAMEAT2,
        [34] = MKDIRAT, [37] = LINKAT, [36] = SYMLINKAT, [52] = FCHMOD, [53] = FCHMODAT,
        [452] = FCHMODAT2, [55] = FCHOWN, [54] = FCHOWNAT, [45] = TRUNCATE, [46] = FTRUNCATE,
        [33] = MKNODAT, [203] = CONNECT, [206] = SENDTO, [211] = SENDMSG, [269] = SENDMMSG,
        [221] = EXECVE, [281] = EXECVEAT, [425] = IO_URING_SETUP,
        [64] = WRITE_FIRST, [68] = WRITE_FIRST, [66] = WRITE_FIRST, [70] = WRITE_FIRST,
        [287] = WRITE_FIRST, [71] = WRITE_FIRST, [75] = WRITE_FIRST, [77] = WRITE_SECOND,
        [76] = WRITE_THIRD, [285] = WRITE_THIRD,
    },
#endif
    .shapes = {
        //            dirfd path  to    to    flags mode  size  in the books
        [OPEN] = SHAPE(CWD, 0, NONE, NONE, 1, 2, NONE, 1),
        [CREAT] = SHAPE(CWD, 0, NONE, NONE, NONE, 1, NONE, 1),
        [OPENAT] = SHAPE(0, 1, NONE, NONE, 2, 3, NONE, 1),
        [OPENAT2] = SHAPE(0, 1, NONE, NONE, NONE, NONE, NONE, 1),
        [UNLINK] = SHAPE(CWD, 0, NONE, NONE, NONE, NONE, NONE, 2),
        [UNLINKAT] = SHAPE(0, 1, NONE, NONE, 2, NONE, NONE, 2),
        [RENAME] = SHAPE(CWD, 0, CWD, 1, NONE, NONE, NONE, 3),
        [RENAMEAT] = SHAPE(0, 1, 2, 3, NONE, NONE, NONE, 3),
        [RENAMEAT2] = SHAPE(0, 1, 2, 3, 4, NONE, NONE, 3),
        [MKDIR] = SHAPE(CWD, 0, NONE, NONE, NONE, 1, NONE, 4),
        [MKDIRAT] = SHAPE(0, 1, NONE, NONE, NONE, 2, NONE, 4),
        [RMDIR] = SHAPE(CWD, 0, NONE, NONE, NONE, NONE, NONE, 2),
        [LINK] = SHAPE(CWD, 0, CWD, 1, NONE, NONE, NONE, 5),
        [LINKAT] = SHAPE(0, 1, 2, 3, 4, NONE, NONE, 5),
        [SYMLINK] = SHAPE(NONE, 0, CWD, 1, NONE, NONE, NONE, 5),
        [SYMLINKAT] = SHAPE(NONE, 0, 1, 2, NONE, NONE, NONE, 5),
        [CHMOD] = SHAPE(CWD, 0, NONE, NONE, NONE, 1, NONE, 6),
        [FCHMOD] = SHAPE(0, NONE, NONE, NONE, NONE, 1, NONE, 6),
        [FCHMODAT] = SHAPE(0, 1, NONE, NONE, NONE, 2, NONE, 6),
        [FCHMODAT2] = SHAPE(0, 1, NONE, NONE, 3, 2, NONE, 6),
        [CHOWN] = SHAPE(CWD, 0, NONE, NONE, NONE, NONE, 1, 6),
        [FCHOWN] = SHAPE(0, NONE, NONE, NONE, NONE, NONE, 1, 6),
        [LCHOWN] = SHAPE(CWD, 0, NONE, NONE, NONE, NONE, 1, 6),
        [FCHOWNAT] = SHAPE(0, 1, NONE, NONE, 4, NONE, 2, 6),
        [TRUNCATE] = SHAPE(CWD, 0, NONE, NONE, NONE, NONE, 1, 7),
        [FTRUNCATE] = SHAPE(0, NONE, NONE, NONE, NONE, NONE, 1, 7),
        [MKNOD] = SHAPE(CWD, 0, NONE, NONE, NONE, 1, NONE, 4),
        [MKNODAT] = SHAPE(0, 1, NONE, NONE, NONE, 2, NONE, 4),
        [CONNECT] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 8),
        [SENDTO] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 9),
        [SENDMSG] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 9),
        [SENDMMSG] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 9),
        [EXECVE] = SHAPE(CWD, 0, NONE, NONE, NONE, NONE, NONE, 10),
        [EXECVEAT] = SHAPE(0, 1, NONE, NONE, 4, NONE, NONE, 10),
        [IO_URING_SETUP] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 11),
        [EXEC] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 12),
        [FORK] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 13),
        [EXIT] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 14),
        [WROTE] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 15),
        [URING_RESULT] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 0),
    },
};

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
    e->lengths[TO_PATH] = e->lengths[TO_BASE] = e->unused = 0;
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

static __always_inline int put(void *e, u64 size, u8 call)
{
    struct books *b = the_books();
    if (!b)
        return 0;
    u32 kind = ro.shapes[call & 63].books & (MOST_CALLS - 1);
    u64 wake = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) >= ro.wake ? BPF_RB_FORCE_WAKEUP
                                                                      : BPF_RB_NO_WAKEUP;
    b->seen[kind]++;
    if (bpf_ringbuf_output(&ring, e, size, wake)) {
        b->dropped[kind]++;
        b->lost++;
    }
    return 0;
}

static __always_inline int put_long(struct event *e)
{
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
        return -1;
    }
    if (n == PATH_ROOM)
        e->flags |= TRUNCATED;
    e->lengths[section & 3] = n - 1;
    e->end = at + n - 1;
    return n == 1 || e->data[at] != '/';  // relative
}

struct walker {
    struct event *event;
    struct dentry *dentry, *root;
    struct mount *mount;
    u32 start, flag;
};

// One name, or one mount that is left behind. 1: done; `flag` says what is wrong with it.
static int step(u32 number, struct walker *w)
{
    struct event *e = w->event;
    volatile u32 *end = &e->end;
    struct dentry *d = w->dentry;
    if (d == w->root) {
        struct mount *m = w->mount, *parent = BPF_CORE_READ(m, mnt_parent);
        if (parent == m) {
            u64 space = (u64)BPF_CORE_READ(m, mnt_ns);
            w->flag = !space || space >= (u64)-4095 ? UNREACHABLE : 0;
            return 1;
        }
        w->dentry = BPF_CORE_READ(m, mnt_mountpoint);
        w->mount = parent;
        w->root = BPF_CORE_READ(parent, mnt.mnt_root);
        return 0;
    }
    struct dentry *parent = BPF_CORE_READ(d, d_parent);
    if (parent == d) {
        w->flag = UNREACHABLE;
        return 1;
    }
    u64 at = *end;
    if (at > sizeof(e->data) - NAME_ROOM || at - w->start > WALK_ROOM - NAME_ROOM)
        return 1;
    long n = bpf_probe_read_kernel_str(&e->data[at], NAME_ROOM, BPF_CORE_READ(d, d_name.name));
    if (n <= 0)
        return 1;
    *end = at + n;
    w->dentry = parent;
    return 0;
}

// Names from the leaf to the root, each with its NUL, across mounts; user space turns them round.
// A path that cannot be followed to the root of all mounts leaves nothing: half would mislead.
__attribute__((noinline)) int walk(u32 slot, u32 section, u64 dentry, u64 vfsmount)
{
    struct event *e = bpf_map_lookup_elem(&scratch, &slot);
    if (!e || !dentry || !vfsmount)
        return 0;
    struct mount *m = (void *)vfsmount - bpf_core_field_offset(struct mount, mnt);
    volatile u32 *end = &e->end;
    u32 start = *end;
    struct dentry *d = (void *)dentry, *root = BPF_CORE_READ(m, mnt.mnt_root);
    struct walker w = {e, d, root, m, start, WALK_CUT};
    if (d != root && !BPF_CORE_READ(d, d_hash.pprev))
        e->flags |= UNREACHABLE;  // its last name is gone: what follows is where it was
    bpf_loop(WALK_STEPS, step, &w, 0);
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

static __always_inline struct file *file_of(struct task_struct *task, int fd)
{
    struct fdtable *table = BPF_CORE_READ(task, files, fdt);
    struct file **files = BPF_CORE_READ(table, fd), *file = 0;
    if (fd >= 0 && (u32)fd < BPF_CORE_READ(table, max_fds))
        bpf_probe_read_kernel(&file, sizeof file, &files[fd]);
    return file;
}

static __always_inline int walk_file(u32 slot, u32 section, struct file *file)
{
    return walk(slot, section, (u64)BPF_CORE_READ(file, f_path.dentry),
                (u64)BPF_CORE_READ(file, f_path.mnt));
}

__attribute__((noinline)) int walk_base(u32 slot, u32 section, int dirfd)
{
    struct task_struct *task = bpf_get_current_task_btf();
    if (dirfd == AT_FDCWD)
        return walk(slot, section, (u64)BPF_CORE_READ(task, fs, pwd.dentry),
                    (u64)BPF_CORE_READ(task, fs, pwd.mnt));
    return walk_file(slot, section, file_of(task, dirfd));
}

static __always_inline int on_path_call(struct event *e, struct task_struct *task)
{
    u32 call = e->call & 63;
    u32 at_dirfd = ro.shapes[call].dirfd & 7, at_path = ro.shapes[call].path & 7;
    u32 at_to = ro.shapes[call].to_path & 7;
    e->args[CWD] = (u64)AT_FDCWD;
    e->args[NONE] = 0;
    if (call == OPENAT2) {
        u64 how[3] = {}, size = AT_MOST(e->args[3], sizeof how);
        bpf_probe_read_user(how, size, (void *)e->args[2]);
        e->open_flags = how[0];
        e->mode = how[1];
        e->resolve = how[2];
    } else {
        e->open_flags = call == CREAT ? 01101 : e->args[ro.shapes[call].flags & 7];
        e->mode = e->args[ro.shapes[call].mode & 7];
        u32 at_size = ro.shapes[call].size & 7;
        u64 size = e->args[at_size];
        if (call == TRUNCATE || call == FTRUNCATE)
            e->extra = size;
        else
            e->extra = (u32)size | e->args[(at_size + 1) & 7] << 32;
    }
    int relative = 0;
    if (at_path != NONE)
        relative = put_text(OF_SYSCALL, PATH, e->args[at_path], 0);
    if (call <= OPENAT2 && e->ret >= 0)
        relative = !walk_file(OF_SYSCALL, RESOLVED, file_of(task, e->ret)) && relative > 0;
    else if (at_path == NONE)
        walk_base(OF_SYSCALL, RESOLVED, e->args[at_dirfd]);
    if (relative > 0 && at_dirfd != NONE)
        walk_base(OF_SYSCALL, BASE, e->args[at_dirfd]);
    if (at_to != NONE && put_text(OF_SYSCALL, TO_PATH, e->args[at_to], 0) > 0)
        walk_base(OF_SYSCALL, TO_BASE, e->args[ro.shapes[call].to_dirfd & 7]);
    return put_long(e);
}

// Where the peer's address is, in the memory of the one who calls; 0: it names none.
static __always_inline u64 peer_of(struct event *e, u32 *length)
{
    u32 call = e->call;
    if (call == CONNECT) {
        *length = e->args[2];
        return e->args[1];
    }
    if (call == SENDTO) {
        *length = e->args[5];
        return e->args[4];
    }
    // msg_name and msg_namelen come first, in each of several messages as well
    u64 name = 0;
    if (e->flags & COMPAT) {
        u32 words[2] = {};
        bpf_probe_read_user(words, sizeof words, (void *)e->args[1]);
        name = words[0];
        *length = words[1];
    } else {
        u64 words[2] = {};
        bpf_probe_read_user(words, sizeof words, (void *)e->args[1]);
        name = words[0];
        *length = words[1];
    }
    if (call == SENDMMSG && (u32)e->args[2] > 1)
        e->flags |= FIRST_ONLY;
    return *length ? name : 0;
}

static __always_inline int on_socket_call(struct event *e)
{
    u32 length = 0;
    u64 peer = peer_of(e, &length);
    if (!peer && e->call != CONNECT)
        return 0;
    u64 n = AT_MOST((u64)length, 128);
    if (bpf_probe_read_user(e->data, n, (void *)peer)) {
        e->flags |= NO_PATH;
        n = 0;
    }
    e->lengths[PATH] = n;
    e->end = n;
    return put_long(e);
}

// Only where somebody asked for it: what a program says to whoever reads its stdout, and when.
static __always_inline int on_write(struct task_struct *task, u32 scope, int fd, s64 ret)
{
    struct inode *inode = BPF_CORE_READ(file_of(task, fd), f_inode);
    u64 number = BPF_CORE_READ(inode, i_ino), device = BPF_CORE_READ(inode, i_sb, s_dev);
    for (u32 i = 0; i < WATCHES; i++) {
        if (i >= ro.watched)
            return 0;
        if (ro.watches[i].inode != number || ro.watches[i].device != device)
            continue;
        char header[HEADER] __attribute__((aligned(8)));
        struct event *e = (void *)header;
        begin(e, WROTE, scope);
        e->detail = i;
        e->ret = ret;
        return put(header, HEADER, WROTE);
    }
    return 0;
}

// 32-bit programs had 16-bit owners, and two registers for a long size.
static __always_inline u8 widened(struct event *e, u8 call)
{
    u64 *args = e->args;
    if (call == TRUNCATE64 || call == FTRUNCATE64) {
        args[1] |= args[2] << 32;
        return call == TRUNCATE64 ? TRUNCATE : FTRUNCATE;
    }
    if (call == TRUNCATE || call == FTRUNCATE)
        args[1] = (s64)(s32)args[1];
    if (call != CHOWN16 && call != FCHOWN16 && call != LCHOWN16)
        return call;
    args[1] = (u16)args[1] == 0xffff ? 0xffffffff : (u16)args[1];
    args[2] = (u16)args[2] == 0xffff ? 0xffffffff : (u16)args[2];
    return call == CHOWN16 ? CHOWN : call == FCHOWN16 ? FCHOWN : LCHOWN;
}

// One call for all that sockets do, with the arguments in memory.
static __always_inline u8 of_socketcall(struct event *e)
{
    u32 words[6] = {}, what = e->args[0];
    bpf_probe_read_user(words, what == 3 ? 12 : what == 11 ? 24 : 16, (void *)e->args[1]);
    for (int i = 0; i < 6; i++)
        e->args[i] = words[i];
    return what == 3 ? CONNECT : what == 11 ? SENDTO : what == 16 ? SENDMSG : what == 20 ? SENDMMSG : 0;
}

static __always_inline void put_args(u64 *args, struct pt_regs *regs, int compat)
{
#if defined(__TARGET_ARCH_x86)
    if (compat) {
        args[0] = (u32)regs->bx;
        args[1] = (u32)regs->cx;
        args[2] = (u32)regs->dx;
        args[3] = (u32)regs->si;
        args[4] = (u32)regs->di;
        args[5] = (u32)regs->bp;
        return;
    }
    args[0] = regs->di;
    args[1] = regs->si;
    args[2] = regs->dx;
    args[3] = regs->r10;
    args[4] = regs->r8;
    args[5] = regs->r9;
#else
    args[0] = regs->orig_x0;
    args[1] = regs->regs[1];
    args[2] = regs->regs[2];
    args[3] = regs->regs[3];
    args[4] = regs->regs[4];
    args[5] = regs->regs[5];
#endif
}

static __always_inline u8 call_of(u64 number, int compat)
{
    if (number >= 512)
        return NO_CALL;
    return compat ? ro.compat[number & 511] : ro.native[number & 511];
}

SEC("tp_btf/sys_exit")
int on_sys_exit(u64 *ctx)
{
    struct pt_regs *regs = (void *)ctx[0];
    s64 ret = ctx[1];
    struct task_struct *task = bpf_get_current_task_btf();
#if defined(__TARGET_ARCH_x86)
    int compat = task->thread_info.status & 2;
    u64 number = regs->orig_ax;
    int foreign = !compat && number >> 30 == 1;  // the x32 way to call
#else
    int compat = 0, foreign = task->thread_info.flags >> 22 & 1;  // a 32-bit program
    u64 number = regs->syscallno;
#endif
    u8 call = call_of(number, compat);
    if (foreign) {
        if (ret != -38 && scope_of(task->tgid)) {
            struct books *b = the_books();
            if (b)
                b->foreign++;
        }
        return 0;
    }
    if (!call || (call >= WRITE_FIRST && !ro.watched))
        return 0;
    if (compat)
        ret = (s32)ret;
    if (ret <= -512 && ret >= -516)
        return 0;  // to be called again: no result yet
    u32 scope = scope_of(task->tgid);
    if (!scope)
        return 0;
    struct event *e = begin_long(OF_SYSCALL, call, compat ? scope | COMPAT : scope);
    if (!e)
        return 0;
    e->ret = ret;
    put_args(e->args, regs, compat);
    if (call >= WRITE_FIRST)
        return ret > 0 ? on_write(task, scope, e->args[(call - WRITE_FIRST) & 3], ret) : 0;
    if (call == SOCKETCALL)
        e->call = call = of_socketcall(e);
    else if (compat)
        e->call = call = widened(e, call);
    if (call == IO_URING_SETUP)
        return put_long(e);
    if (call == EXECVE || call == EXECVEAT) {
        if (ret >= 0)
            return 0;  // on_exec has it
        if (scope & BEFORE_EXEC) {
            u32 pid = task->tgid;
            u8 state = RUNNING;
            bpf_map_update_elem(&tree, &pid, &state, BPF_EXIST);
            e->flags &= ~BEFORE_EXEC;
        }
    }
    if (call >= CONNECT && call <= SENDMMSG)
        return on_socket_call(e);
    return call ? on_path_call(e, task) : 0;
}

SEC("tp_btf/sched_process_exec")
int on_exec(u64 *ctx)
{
    struct task_struct *task = (void *)ctx[0];
    struct linux_binprm *binary = (void *)ctx[2];
    u32 pid = task->tgid, scope = scope_of(pid);
    if (!scope)
        return 0;
    if (scope & BEFORE_EXEC) {
        u8 state = RUNNING;
        bpf_map_update_elem(&tree, &pid, &state, BPF_EXIST);
        scope &= ~BEFORE_EXEC;
    }
    struct event *e = begin_long(OF_EXEC, EXEC, (u32)ctx[1] != (u32)task->pid ? scope | THREAD_EXEC : scope);
    if (!e)
        return 0;
    int relative = put_text(OF_EXEC, PATH, (u64)BPF_CORE_READ(binary, filename), 1) > 0;
    walk_file(OF_EXEC, RESOLVED, BPF_CORE_READ(task, mm, exe_file));
    if (relative)
        walk_base(OF_EXEC, BASE, AT_FDCWD);
    u64 from = BPF_CORE_READ(task, mm, arg_start);
    u64 length = BPF_CORE_READ(task, mm, arg_end) - from;
    u64 at = AT_MOST((u64)*(volatile u32 *)&e->end, sizeof(e->data) - ARGV_ROOM);
    u64 n = AT_MOST(length, ARGV_ROOM);
    if (length > ARGV_ROOM)
        e->flags |= TRUNCATED;
    if (bpf_probe_read_user(&e->data[at], n, (void *)from)) {
        e->flags |= NO_TO_PATH;
        n = 0;
    }
    e->lengths[TO_PATH] = n;
    e->end = at + n;
    return put_long(e);
}

SEC("tp_btf/sched_process_fork")
int on_fork(u64 *ctx)
{
    struct task_struct *parent = (void *)ctx[0], *task = (void *)ctx[1];
    u32 child = task->tgid, scope;
    u8 state = FRESH;
    if (child == (u32)parent->tgid)
        return 0;  // a thread
    int by_guard = is_guard();
    if (!by_guard) {
        scope = scope_of(parent->tgid);
        if (!scope)
            return 0;
        if (!(scope & BEFORE_EXEC))
            state = RUNNING;
    }
    if (by_guard || scope & IN_TREE)
        if (bpf_map_update_elem(&tree, &child, &state, BPF_ANY)) {
            struct books *b = the_books();
            if (b)
                b->lost_forks++;
        }
    return by_guard ? 0 : put_short(FORK, scope, child, 0);
}

SEC("tp_btf/sched_process_exit")
int on_exit(u64 *ctx)
{
    struct task_struct *task = (void *)ctx[0];
    if (BPF_CORE_READ(task, signal, live.counter))
        return 0;  // not the last thread
    u32 pid = task->tgid, scope = scope_of(pid);
    if (!scope)
        return 0;
    // Two last threads may both find that nobody lives: the first one says so.
    struct task_struct *leader = BPF_CORE_READ(task, group_leader);
    struct life life = {BPF_CORE_READ(leader, start_boottime), pid, 0};
    u8 one = 1;
    if (bpf_map_update_elem(&ended, &life, &one, BPF_NOEXIST) == -17)
        return 0;
    bpf_map_delete_elem(&tree, &pid);
    int by_group = BPF_CORE_READ(task, signal, flags) & 4;
    u32 status = by_group ? BPF_CORE_READ(task, signal, group_exit_code) : BPF_CORE_READ(leader, exit_code);
    return put_short(EXIT, scope, status, 0);
}

#ifdef WITH_URING
// The kernel has copied names by now: what it was given and what is read here are the same.
// Reads are direct where older kernels pass something else: the verifier refuses those there.
static __always_inline u8 uring_call(u8 operation)
{
    switch (operation) {
    case 16: return CONNECT;
    case 18: return OPENAT;
    case 28: return OPENAT2;
    case 35: return RENAMEAT2;
    case 36: return UNLINKAT;
    case 37: return MKDIRAT;
    case 38: return SYMLINKAT;
    case 39: return LINKAT;
    }
    return NO_CALL;
}

static __always_inline void put_name(u32 section, struct filename *name, int dirfd)
{
    if (put_text(OF_URING, section, (u64)BPF_CORE_READ(name, name), 1) > 0 && dirfd != -1)
        walk_base(OF_URING, section + 2 - (section == TO_PATH), dirfd);
}

SEC("tp_btf/io_uring_submit_req")
int on_uring_submit(u64 *ctx)
{
    struct io_kiocb *request = (void *)ctx[0];
    u8 operation = request->opcode, call = uring_call(operation), one = 1;
    // sendmsg send send_zc sendmsg_zc ftruncate: what they reach is not followed
    int unseen = operation == 9 || operation == 26 || operation == 47 || operation == 48 || operation == 55;
    if (!call && !unseen)
        return 0;
    u32 scope = scope_of(bpf_get_current_pid_tgid() >> 32);
    if (!scope)
        return 0;
    if (unseen) {
        struct books *b = the_books();
        if (b)
            b->unseen_uring++;
        return 0;
    }
    struct event *e = begin_long(OF_URING, call, scope | URING);
    if (!e)
        return 0;
    u64 key = (u64)request;
    e->extra = key;
    if (call == OPENAT || call == OPENAT2) {
        struct io_open *open = (void *)request;
        e->open_flags = BPF_CORE_READ(open, how.flags);
        e->mode = BPF_CORE_READ(open, how.mode);
        e->resolve = BPF_CORE_READ(open, how.resolve);
        put_name(PATH, BPF_CORE_READ(open, filename), BPF_CORE_READ(open, dfd));
    } else if (call == UNLINKAT) {
        struct io_unlink *unlink = (void *)request;
        e->open_flags = BPF_CORE_READ(unlink, flags);
        put_name(PATH, BPF_CORE_READ(unlink, filename), BPF_CORE_READ(unlink, dfd));
    } else if (call == MKDIRAT) {
        struct io_mkdir *mkdir = (void *)request;
        e->mode = BPF_CORE_READ(mkdir, mode);
        put_name(PATH, BPF_CORE_READ(mkdir, filename), BPF_CORE_READ(mkdir, dfd));
    } else if (call == RENAMEAT2) {
        struct io_rename *rename = (void *)request;
        e->open_flags = BPF_CORE_READ(rename, flags);
        put_name(PATH, BPF_CORE_READ(rename, oldpath), BPF_CORE_READ(rename, old_dfd));
        put_name(TO_PATH, BPF_CORE_READ(rename, newpath), BPF_CORE_READ(rename, new_dfd));
    } else if (call == CONNECT) {
        struct io_connect *connect = (void *)request;  // a pointer of the program, still
        u64 n = AT_MOST((u64)(u32)BPF_CORE_READ(connect, addr_len), 128);
        if (bpf_probe_read_user(e->data, n, BPF_CORE_READ(connect, addr))) {
            e->flags |= NO_PATH;
            n = 0;
        }
        e->lengths[PATH] = n;
        e->end = n;
    } else {
        struct io_link *link = (void *)request;
        e->open_flags = BPF_CORE_READ(link, flags);
        put_name(PATH, BPF_CORE_READ(link, oldpath), call == LINKAT ? BPF_CORE_READ(link, old_dfd) : -1);
        put_name(TO_PATH, BPF_CORE_READ(link, newpath), BPF_CORE_READ(link, new_dfd));
    }
    bpf_map_update_elem(&requests, &key, &one, BPF_ANY);
    return put_long(e);
}

SEC("tp_btf/io_uring_complete")
int on_uring_complete(u64 *ctx)
{
    u64 key = ctx[1];
    struct io_uring_cqe *result = (void *)ctx[2];
    // Whoever happens to run: the request is what it belongs to.
    if (bpf_map_delete_elem(&requests, &key))
        return 0;
    return put_short(URING_RESULT, URING, key, result->res);
}
#endif

char LICENSE[] SEC("license") = "Dual MIT/GPL";
