// SPDX-License-Identifier: (MIT OR GPL-2.0)
// Calls that are no system calls: requests of io_uring, and their results.
// The kernel has copied names by now: what it was given and what is read here are the same.
// Reads are direct where older kernels pass something else: the verifier refuses those there.
#define LAST_OPERATION 61  // writev_fixed

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

static __always_inline void put_name(struct event *e, u32 section, struct filename *name, int dirfd)
{
    int begins = put_text(OF_URING, section, (u64)BPF_CORE_READ(name, name), 1);
    put_base(e, OF_URING, begins, section, dirfd);
}

SEC("tp_btf/io_uring_submit_req")
int on_uring_submit(u64 *ctx)
{
    struct io_kiocb *request = (void *)ctx[0];
    u8 operation = request->opcode, call = uring_call(operation), one = 1;
    // What these reach is not followed: sendmsg accept send fsetxattr setxattr, commands of drivers,
    // send_zc sendmsg_zc ftruncate bind; and what there was not when this was written.
    int unseen = operation == 9 || operation == 13 || operation == 26 || operation == 41
        || operation == 42 || (operation >= 46 && operation <= 48) || operation == 55
        || operation == 56 || operation > LAST_OPERATION;
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
        put_open(e, BPF_CORE_READ(open, how.flags), BPF_CORE_READ(open, how.mode),
                 BPF_CORE_READ(open, how.resolve));
        put_name(e, PATH, BPF_CORE_READ(open, filename), BPF_CORE_READ(open, dfd));
    } else if (call == UNLINKAT) {
        struct io_unlink *unlink = (void *)request;
        e->open_flags = BPF_CORE_READ(unlink, flags);
        put_name(e, PATH, BPF_CORE_READ(unlink, filename), BPF_CORE_READ(unlink, dfd));
    } else if (call == MKDIRAT) {
        struct io_mkdir *mkdir = (void *)request;
        e->mode = BPF_CORE_READ(mkdir, mode);
        put_name(e, PATH, BPF_CORE_READ(mkdir, filename), BPF_CORE_READ(mkdir, dfd));
    } else if (call == RENAMEAT2) {
        struct io_rename *rename = (void *)request;
        e->open_flags = BPF_CORE_READ(rename, flags);
        put_name(e, PATH, BPF_CORE_READ(rename, oldpath), BPF_CORE_READ(rename, old_dfd));
        put_name(e, TO_PATH, BPF_CORE_READ(rename, newpath), BPF_CORE_READ(rename, new_dfd));
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
        if (call == LINKAT)
            put_name(e, PATH, BPF_CORE_READ(link, oldpath), BPF_CORE_READ(link, old_dfd));
        else  // a text, and no path
            put_text(OF_URING, PATH, (u64)BPF_CORE_READ(link, oldpath, name), 1);
        put_name(e, TO_PATH, BPF_CORE_READ(link, newpath), BPF_CORE_READ(link, new_dfd));
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
