// SPDX-License-Identifier: (MIT OR GPL-2.0)
// Whom a process lets in, and what it takes from others: sockets with a name, peers that come, and
// other processes.
#define SOCKET_NAME 110
#define TRACE_ME 0
#define ATTACH 16
#define SEIZE 0x4206

static __always_inline void walk_socket(struct unix_sock *sk)
{
    if (bpf_core_field_exists(struct unix_sock, path))
        walk(OF_SYSCALL, RESOLVED, (u64)BPF_CORE_READ(sk, path.dentry),
             (u64)BPF_CORE_READ(sk, path.mnt));
}

// Functions of their own, so that they are verified once.
__attribute__((noinline)) int on_bind(void)
{
    u32 slot = OF_SYSCALL;
    struct event *e = bpf_map_lookup_elem(&scratch, &slot);
    if (!e)
        return 0;
    struct sock *sk = sock_of(e->args[0]);
    u64 n = AT_MOST((u64)(u32)e->args[2], ADDRESS_ROOM);
    e->detail = BPF_CORE_READ(sk, __sk_common.skc_family);
    if (bpf_probe_read_user(e->data, n, (void *)e->args[1])) {
        e->flags |= NO_PATH;
        n = 0;
    }
    e->lengths[PATH] = n;
    e->end = n;
    if (e->detail != AF_UNIX || n <= 2 || !e->data[2])
        return put_long(e);
    if (e->ret == 0)
        walk_socket((struct unix_sock *)sk);
    put_base(e, OF_SYSCALL, e->data[2] == '/' ? ABSOLUTE : RELATIVE, PATH, AT_FDCWD);
    return put_long(e);
}

// The socket knows who has come, whether or not the program has asked.
static __always_inline void put_accepted(struct event *e, struct sock *sk)
{
    u32 family = BPF_CORE_READ(sk, __sk_common.skc_family), given = 0;
    struct unix_sock *own_path = 0;
    u64 n = 0;
    e->detail = family;
    e->lengths[PATH] = e->end = 0;
    if (family == AF_INET || family == AF_INET6) {
        *(u16 *)&e->data[0] = AF_INET;  // as which one of IPv4 is told, also on a socket of both
        put_connected(e, sk, family);
        return;
    }
    if (family == AF_UNIX && bpf_core_field_exists(struct unix_sock, addr)) {
        struct unix_address *own = BPF_CORE_READ((struct unix_sock *)sk, addr);
        n = AT_MOST((u64)(u32)BPF_CORE_READ(own, len), SOCKET_NAME);
        if (!own || bpf_probe_read_kernel(e->data, n, &own->name[0]))
            n = 0;
        own_path = n > 2 && e->data[2] ? (struct unix_sock *)sk : 0;
    } else if (e->call != PIDFD_GETFD && e->args[1]) {
        bpf_probe_read_user(&given, sizeof given, (void *)e->args[2]);
        n = AT_MOST((u64)given, ADDRESS_ROOM);
        if (bpf_probe_read_user(e->data, n, (void *)e->args[1]))
            n = 0;
    }
    e->lengths[PATH] = n;
    e->end = n;
    if (own_path)
        walk_socket(own_path);
}

__attribute__((noinline)) int on_accept(void)
{
    u32 slot = OF_SYSCALL;
    struct event *e = bpf_map_lookup_elem(&scratch, &slot);
    if (!e)
        return 0;
    put_accepted(e, sock_of(e->ret));
    return put_long(e);
}

// Whom a call has reached: as the first pid namespace counts, where that can be told.
static __always_inline u32 reached_by(struct event *e, struct task_struct *task)
{
    if (e->call == PTRACE) {
        struct task_struct *traced;
        struct list_head *last = BPF_CORE_READ(task, ptraced.next);
        if (e->ret < 0)
            return e->args[1];
        traced = (void *)last - bpf_core_field_offset(struct task_struct, ptrace_entry);
        return BPF_CORE_READ(traced, tgid);
    }
    if (e->call == PIDFD_GETFD) {
        struct file *file = own_file(task, e->args[0]);
        struct pid *pid = BPF_CORE_READ(file, private_data);
        if (!pid)  // since Linux 6.9
            pid = BPF_CORE_READ(file, f_inode, i_private);
        return e->ret < 0 ? 0 : BPF_CORE_READ(pid, numbers[0].nr);
    }
    return e->args[0];
}

// A number in a pid namespace of the run's own cannot be looked up: nobody knows whose it is.
static __always_inline int is_outside(struct event *e, struct task_struct *task, u32 pid)
{
    int is_claim = e->call == PROCESS_VM_READV || e->call == PROCESS_VM_WRITEV;
    if (is_claim && BPF_CORE_READ(task, thread_pid, level))
        return 1;
    return pid != (u32)task->tgid && pid != (u32)task->pid && !bpf_map_lookup_elem(&tree, &pid);
}

__attribute__((noinline)) int on_reach(void)
{
    u32 slot = OF_SYSCALL;
    struct event *e = bpf_map_lookup_elem(&scratch, &slot);
    struct task_struct *task = bpf_get_current_task_btf();
    if (!e)
        return 0;
    u32 request = e->args[0];
    if (e->call == PTRACE) {
        if (ro.looks_closer && request == TRACE_ME)
            return put_long(e);
        if (request != ATTACH && request != SEIZE)
            return 0;
        e->open_flags = request;
    }
    u32 pid = reached_by(e, task);
    e->extra = pid;
    if (e->ret >= 0 && is_outside(e, task, pid))
        e->flags |= OUTSIDE;
    if (e->call == PIDFD_GETFD && e->ret >= 0) {
        struct sock *sk = sock_of(e->ret);
        if (sk)
            put_accepted(e, sk);
        else
            walk_file(OF_SYSCALL, RESOLVED, own_file(task, e->ret));
    }
    return put_long(e);
}
