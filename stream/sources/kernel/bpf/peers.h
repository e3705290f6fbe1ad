// SPDX-License-Identifier: (MIT OR GPL-2.0)
// Whom a socket is connected to, or something is sent to.
#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
#define EINTR 4
#define EINPROGRESS 115
#define ADDRESS_ROOM 128
#define MOST_MESSAGES 1024  // more of them the kernel does not take at a time
#define MESSAGE 64  // bytes of one of several messages
#define COMPAT_MESSAGE 32

static __always_inline struct sock *sock_of(int fd)
{
    struct file *file = own_file(bpf_get_current_task_btf(), fd);
    struct socket *socket = BPF_CORE_READ(file, private_data);
    return file && BPF_CORE_READ(socket, file) == file ? BPF_CORE_READ(socket, sk) : 0;
}

static __always_inline void put_internet(struct event *e, u16 port, u32 address)
{
    *(u16 *)&e->data[0] = AF_INET;
    *(u16 *)&e->data[2] = port;
    *(u32 *)&e->data[4] = address;
    e->lengths[PATH] = e->end = 16;
    e->flags &= ~NO_PATH;
}

// A thread may have changed the address since the kernel has read it: the socket knows. One that
// knows nobody (any more) leaves what was read.
static __always_inline void put_connected(struct event *e, struct sock *sk, u32 family)
{
    u16 port = BPF_CORE_READ(sk, __sk_common.skc_dport), given = *(u16 *)&e->data[0];
    if (family == AF_INET) {
        u32 address = BPF_CORE_READ(sk, __sk_common.skc_daddr);
        if (address || port)
            put_internet(e, port, address);
    } else if (family == AF_INET6 && bpf_core_field_exists(struct sock_common, skc_v6_daddr)) {
        struct in6_addr to = BPF_CORE_READ(sk, __sk_common.skc_v6_daddr);
        u32 *w = (u32 *)&to;
        if (!(port || w[0] || w[1] || w[2] || w[3]))
            return;
        if (given == AF_INET && !w[0] && !w[1] && w[2] == 0xffff0000) {
            put_internet(e, port, w[3]);
            return;
        }
        if (given != AF_INET6 || e->lengths[PATH] < 28)
            *(u32 *)&e->data[24] = 0;  // its scope
        *(u16 *)&e->data[0] = AF_INET6;
        *(u16 *)&e->data[2] = port;
        for (int i = 0; i < 4; i++)
            *(u32 *)&e->data[8 + 4 * i] = w[i];
        e->lengths[PATH] = e->end = 28;
        e->flags &= ~NO_PATH;
    }
}

// `detail` says what family the socket is of: an address may say anything.
static __always_inline int put_peer(struct event *e, struct sock *sk, u64 from, u32 length)
{
    u32 family = BPF_CORE_READ(sk, __sk_common.skc_family);
    u64 n = AT_MOST((u64)length, ADDRESS_ROOM);
    e->detail = family;
    if (bpf_probe_read_user(e->data, n, (void *)from)) {
        e->flags |= NO_PATH;
        n = 0;
    }
    e->lengths[PATH] = n;
    e->end = n;
    if (e->call == CONNECT && (e->ret == 0 || e->ret == -EINPROGRESS || e->ret == -EINTR
                               || e->ret <= NOT_SEEN))
        put_connected(e, sk, family);
    if (n > 2 && *(u16 *)&e->data[0] == AF_UNIX && e->data[2] && e->data[2] != '/')
        walk_base(OF_SYSCALL, BASE, AT_FDCWD);
    return put_long(e);
}

// Where the name in a message's header lies, in the memory of the one who calls; 0: there is none.
static __always_inline u64 name_in(u64 header, u32 flags, u32 *length)
{
    u64 words[2] = {};
    if (flags & COMPAT) {
        u32 halves[2] = {};
        bpf_probe_read_user(halves, sizeof halves, (void *)header);
        words[0] = halves[0];
        words[1] = halves[1];
    } else {
        bpf_probe_read_user(words, sizeof words, (void *)header);
    }
    *length = words[1];
    return *length ? words[0] : 0;
}

struct messages { struct event *event; struct sock *sock; u64 at; s32 ret; u32 flags; };

// One of several. How one that was not sent failed, behind others that were, is not to be seen.
static int put_message(u32 number, struct messages *m)
{
    struct event *e = m->event;
    u32 length = 0, size = m->flags & COMPAT ? COMPAT_MESSAGE : MESSAGE;
    u64 name = name_in(m->at + number * size, m->flags, &length);
    if (!name)
        return 0;
    e->flags = m->flags;
    e->ret = m->ret > 0 && number >= m->ret ? NOT_SEEN : m->ret;
    e->lengths[BASE] = 0;
    put_peer(e, m->sock, name, length);
    return 0;
}

static __always_inline int on_socket_call(struct event *e)
{
    u32 length = 0, call = e->call;
    struct sock *sk = sock_of(e->args[0]);
    if (call == SENDMMSG) {
        u32 most = e->args[2], tried = e->ret > 0 ? e->ret + 1 : 1;
        struct messages m = {e, sk, e->args[1], e->ret, e->flags};
        bpf_loop(AT_MOST((u64)(most < tried ? most : tried), MOST_MESSAGES), put_message, &m, 0);
        return 0;
    }
    u64 peer = e->args[1];
    if (call == CONNECT)
        length = e->args[2];
    else if (call == SENDTO) {
        length = e->args[5];
        peer = length ? e->args[4] : 0;
    } else
        peer = name_in(peer, e->flags, &length);
    return peer || call == CONNECT ? put_peer(e, sk, peer, length) : 0;
}
