// SPDX-License-Identifier: (MIT OR GPL-2.0)
// What a run does to files, peers and processes, seen where a system call returns.
//
// At sys_exit the registers still hold the arguments: one program sees a call and its result, and
// nothing has to be remembered between the two. Paths are resolved here, while the file is open
// and the folder is where it is: user space would be late. Only raw tracepoints with BTF are used.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "kernel.h"
#include "calls.h"
#include "events.h"
#include "paths.h"
#include "views.h"
#include "peers.h"
#include "reach.h"
#ifdef WITH_URING
#include "uring.h"
#endif

static __always_inline int on_path_call(struct event *e, struct task_struct *task)
{
    u32 call = e->call & (SHAPES - 1);
    u32 at_dirfd = ro.shapes[call].dirfd & 7, at_path = ro.shapes[call].path & 7;
    // All of it first: some kernels (6.1.192) no longer know later that the number is in the table.
    u32 at_to = ro.shapes[call].to_path & 7, at_to_dirfd = ro.shapes[call].to_dirfd & 7;
    u32 at_flags = ro.shapes[call].flags & 7, at_mode = ro.shapes[call].mode & 7;
    u32 at_size = ro.shapes[call].size & 7;
    e->args[CWD] = (u64)AT_FDCWD;
    e->args[NONE] = 0;
    if (call == OPENAT2) {
        u64 how[3] = {}, size = AT_MOST(e->args[3], sizeof how);
        bpf_probe_read_user(how, size, (void *)e->args[2]);
        put_open(e, how[0], how[1], how[2]);
    } else {
        u64 flags = e->args[at_flags], mode = e->args[at_mode];
        e->open_flags = flags;
        e->mode = mode;
        if (call <= LAST_OPEN)
            put_open(e, call == CREAT ? 01101 : flags, mode, 0);
        u64 size = e->args[at_size];
        if (call == TRUNCATE || call == FTRUNCATE)
            e->extra = size;
        else
            e->extra = (u32)size | e->args[(at_size + 1) & 7] << 32;
    }
    if (!e->args[at_path] && (call == UTIMENSAT || call == FUTIMESAT)) {
        at_path = NONE;  // the descriptor itself
    } else if (!e->args[at_path] && call == ACCT) {
        at_path = at_dirfd = NONE;  // no more
    }
    int begins = at_path == NONE ? UNREAD : put_text(OF_SYSCALL, PATH, e->args[at_path], 0);
    int is_reached = 0;
    // A copy of a tree lies among no mounts: what it was made of is what was named.
    int is_tree = (call == OPEN_TREE || call == OPEN_TREE_ATTR) && !(e->open_flags & CLONES_TREE);
    if (e->ret >= 0 && (call <= LAST_OPEN || is_tree))
        is_reached = walk_file(OF_SYSCALL, RESOLVED, own_file(task, e->ret));
    else if (at_path == NONE && at_dirfd != NONE)
        walk_base(OF_SYSCALL, RESOLVED, e->args[at_dirfd]);
    if (e->lengths[RESOLVED] && task->files->count.counter > 1)
        e->flags |= SHARED_FILES;
    if (!is_reached && at_dirfd != NONE)
        put_base(e, OF_SYSCALL, begins, PATH, e->args[at_dirfd]);
    if (at_to != NONE) {
        begins = put_text(OF_SYSCALL, TO_PATH, e->args[at_to], 0);
        if (at_to_dirfd != NONE)
            put_base(e, OF_SYSCALL, begins, TO_PATH, e->args[at_to_dirfd]);
    }
    return put_long(e);
}

// Only where somebody asked for it: what a program says to whoever reads its stdout, and when; and
// of no bytes, that it has opened such a file to write, whatever it is called there. A function of
// its own: what it has on the stack, its caller need not have, too.
__attribute__((noinline)) int on_write(u32 scope, int fd, s64 ret)
{
    struct inode *inode = BPF_CORE_READ(file_of(bpf_get_current_task_btf(), fd), f_inode);
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
    u64 size = what == 11 ? 24 : what == 2 || what == 3 || what == 5 ? 12 : 16;
    bpf_probe_read_user(words, size, (void *)e->args[1]);
    for (int i = 0; i < 6; i++)
        e->args[i] = words[i];
    if (what == 1)
        return ro.looks_closer ? SOCKET : NO_CALL;
    return what == 2 ? BIND : what == 5 || what == 18 ? ACCEPT : what == 3 ? CONNECT : what == 11 ? SENDTO : what == 16 ? SENDMSG
        : what == 20 ? SENDMMSG : NO_CALL;
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

// The kernel looks at half of the register, whatever the other half says.
static __always_inline u8 call_of(u32 number, int compat)
{
    if (number >= 512)
        return NO_CALL;
    u64 at = AT_MOST((u64)number, 511);
    return compat ? ro.compat[at] : ro.native[at];
}

struct called { u8 call; u8 foreign; int compat; };

static __always_inline struct called called_by(struct task_struct *task, struct pt_regs *regs)
{
    struct called called = {};
#if defined(__TARGET_ARCH_x86)
    u32 number = regs->orig_ax;
    called.compat = task->thread_info.status & 2;
    called.foreign = !called.compat && number >> 30 == 1;  // the x32 way to call
#else
    u32 number = regs->syscallno;
    called.foreign = task->thread_info.flags >> 22 & 1;  // a 32-bit program
#endif
    called.call = call_of(number, called.compat);
    return called;
}

static __always_inline int is_followed(u8 call)
{
    if (IS_CLOSER(call))
        return !!ro.looks_closer;
    return call && (call < WRITE_FIRST || ro.watched || ro.looks_closer);
}

// Only where somebody looks closer: a call that a filter (seccomp) refuses is never entered, and
// ends all the same.
SEC("tp_btf/sys_enter")
int on_sys_enter(u64 *ctx)
{
    struct task_struct *task = bpf_get_current_task_btf();
    u32 pid = task->tgid, thread = task->pid;
    u8 one = 1;
    if (!is_followed(called_by(task, (void *)ctx[0]).call) || !bpf_map_lookup_elem(&tree, &pid))
        return 0;
    if (bpf_map_update_elem(&entered, &thread, &one, BPF_ANY)) {
        struct books *b = the_books();
        if (b)
            b->foreign++;  // nobody can tell how it ended
    }
    return 0;
}

SEC("tp_btf/sys_exit")
int on_sys_exit(u64 *ctx)
{
    struct pt_regs *regs = (void *)ctx[0];
    s64 ret = ctx[1];
    struct task_struct *task = bpf_get_current_task_btf();
    struct called called = called_by(task, regs);
    int compat = called.compat;
    u8 call = called.call;
    if (called.foreign) {
        if (ret != -38 && scope_of(task->tgid)) {
            struct books *b = the_books();
            if (b)
                b->foreign++;
        }
        return 0;
    }
    if (!is_followed(call))
        return 0;
    if (compat)
        ret = (s32)ret;
    u32 scope = scope_of(task->tgid);
    if (!scope)
        return 0;
    u32 thread = task->pid, was_entered = 0;
    if (ro.looks_closer)
        was_entered = !bpf_map_delete_elem(&entered, &thread);
    if (call == MOUNTED) {
        if (ret >= 0)
            on_mount(task);
        if (!ro.looks_closer)
            return 0;
        call = MOUNT;
    }
    struct event *e = begin_long(OF_SYSCALL, call, compat ? scope | COMPAT : scope);
    if (!e)
        return 0;
    e->ret = ret;
    e->was_entered = was_entered;
    put_args(e->args, regs, compat);
    if (ro.looks_closer && call >= WRITE_FIRST && ret < 0) {
        e->args[0] = e->args[(call - WRITE_FIRST) & 3];
        e->call = call = WRITE;
    }
    if (call >= READ && call <= WRITE && (ret >= 0 || ret == -EAGAIN))
        return 0;
    if (call >= WRITE_FIRST)
        return ret > 0 ? on_write(scope, e->args[(call - WRITE_FIRST) & 3], ret) : 0;
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
    if (call >= PTRACE && call <= PIDFD_GETFD)
        return on_reach();
    if (call == BIND)
        return on_bind();
    if (call == ACCEPT || call == ACCEPT4)
        return ret < 0 ? 0 : on_accept();
    if (call >= CONNECT && call <= SENDMMSG)
        return on_socket_call(e);
    if (!call)
        return 0;
    on_path_call(e, task);
    if (call <= LAST_OPEN && ret >= 0 && ro.watched && e->open_flags & MAY_WRITE)
        on_write(scope, ret, 0);
    return 0;
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
    if ((u32)ctx[1] != (u32)task->pid)
        scope |= THREAD_EXEC;
    struct event *e = begin_long(OF_EXEC, EXEC, scope);
    if (!e)
        return 0;
    int begins = put_text(OF_EXEC, PATH, (u64)BPF_CORE_READ(binary, filename), 1);
    walk_file(OF_EXEC, RESOLVED, BPF_CORE_READ(task, mm, exe_file));
    put_base(e, OF_EXEC, begins, PATH, AT_FDCWD);
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
    if (by_guard) {
        struct world *w = the_world();
        if (w && !w->root_dentry) {
            w->root_mount = (u64)BPF_CORE_READ(parent, fs, root.mnt);
            w->root_dentry = (u64)BPF_CORE_READ(parent, fs, root.dentry);
            struct mnt_namespace *space = BPF_CORE_READ(parent, nsproxy, mnt_ns);
            w->changes = BPF_CORE_READ(space, event);
            w->space = (u64)space;
        }
    } else {
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
    u32 status = by_group ? BPF_CORE_READ(task, signal, group_exit_code)
                          : BPF_CORE_READ(leader, exit_code);
    return put_short(EXIT, scope, status, 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
