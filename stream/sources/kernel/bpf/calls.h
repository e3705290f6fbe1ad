// SPDX-License-Identifier: (MIT OR GPL-2.0)
// Which calls there are, by their numbers, and which of their arguments is what.
// In this order in decode.py as well: a test compares them.
enum call {
    NO_CALL, OPEN, OPENAT, OPENAT2, CREAT, OPEN_BY_HANDLE_AT, UNLINK, UNLINKAT, RENAME, RENAMEAT,
    RENAMEAT2, MKDIR, MKDIRAT, RMDIR, LINK, LINKAT, SYMLINK, SYMLINKAT, CHMOD, FCHMOD, FCHMODAT,
    FCHMODAT2, CHOWN, FCHOWN, LCHOWN, FCHOWNAT, TRUNCATE, FTRUNCATE, MKNOD, MKNODAT, SETXATTR,
    LSETXATTR, FSETXATTR, SETXATTRAT, REMOVEXATTR, LREMOVEXATTR, FREMOVEXATTR, REMOVEXATTRAT,
    FILE_SETATTR, UTIME, UTIMES, FUTIMESAT, UTIMENSAT, ACCT, OPEN_TREE, OPEN_TREE_ATTR, MQ_OPEN,
    MQ_UNLINK, BPF, INIT_MODULE, FINIT_MODULE, FANOTIFY_INIT, PTRACE, PROCESS_VM_READV,
    PROCESS_VM_WRITEV, PIDFD_GETFD, BIND, ACCEPT, ACCEPT4, CONNECT, SENDTO, SENDMSG, SENDMMSG, EXECVE, EXECVEAT, IO_URING_SETUP,
    // These only where somebody looks closer.
    STAT, LSTAT, NEWFSTATAT, STATX, ACCESS, FACCESSAT, FACCESSAT2, READLINK, READLINKAT, CHROOT,
    SOCKET, KILL, TKILL, TGKILL, MOUNT, UNSHARE, SETUID, SETREUID, SETRESUID, PERF_EVENT_OPEN,
    ADD_KEY, MSGGET, SHMGET, SETHOSTNAME, READ, RECVFROM, GETDENTS64, WRITE,
    EXEC, FORK, EXIT, WROTE, URING_RESULT,
    SOCKETCALL, CHOWN16, FCHOWN16, LCHOWN16, TRUNCATE64, FTRUNCATE64,
    MOUNTED,  // or unmounted, or moved
    WRITE_FIRST, WRITE_SECOND, WRITE_THIRD,  // which argument is the descriptor written to
};

#define IS_CLOSER(call) ((call) >= STAT && (call) <= WRITE)
#define LAST_OPEN OPEN_BY_HANDLE_AT
#define NOT_SEEN (-512)  // in the place of a result, as of a call that a signal interrupts
#define MOST_CALLS 16  // kinds of events in the books
#define WATCHES 8
#define CLONES_TREE 1
#define SHAPES 128  // a power of two

struct watch { u64 device, inode; };

// Which argument is what. CWD and NONE are no arguments: they name the two that are made up.
enum { CWD = 6, NONE = 7 };
struct shape { u8 dirfd, path, to_dirfd, to_path, flags, mode, size, books; };
#define SHAPE(d, p, d2, p2, f, m, s, b) {d, p, d2, p2, f, m, s, b}

// One variable, so that its parts lie where they are declared: user space writes those before
// `native`.
const volatile struct {
    u64 namespace_device, namespace_inode;
    u32 guard, use_cgroup, wake, watched;
    u64 much;  // bytes in the ring
    u64 mounts;  // the namespace of mounts that the recorder is in
    u64 looks_closer;  // at why calls fail, and at more of them
    struct watch watches[WATCHES];
    u8 native[512], compat[512];
    struct shape shapes[SHAPES];
} ro = {
#if defined(__TARGET_ARCH_x86)
    .native = {
        [2] = OPEN, [85] = CREAT, [257] = OPENAT, [437] = OPENAT2, [304] = OPEN_BY_HANDLE_AT,
        [87] = UNLINK, [263] = UNLINKAT, [82] = RENAME, [264] = RENAMEAT, [316] = RENAMEAT2,
        [83] = MKDIR, [258] = MKDIRAT, [84] = RMDIR, [86] = LINK, [265] = LINKAT, [88] = SYMLINK,
        [266] = SYMLINKAT, [90] = CHMOD, [91] = FCHMOD, [268] = FCHMODAT, [452] = FCHMODAT2,
        [92] = CHOWN, [93] = FCHOWN, [94] = LCHOWN, [260] = FCHOWNAT, [76] = TRUNCATE,
        [77] = FTRUNCATE, [133] = MKNOD, [259] = MKNODAT, [42] = CONNECT, [44] = SENDTO,
        [46] = SENDMSG, [307] = SENDMMSG, [59] = EXECVE, [322] = EXECVEAT, [425] = IO_URING_SETUP,
        // write pwrite64 writev pwritev pwritev2 sendfile vmsplice, tee, splice copy_file_range
        [1] = WRITE_FIRST, [18] = WRITE_FIRST, [20] = WRITE_FIRST, [296] = WRITE_FIRST,
        [328] = WRITE_FIRST, [40] = WRITE_FIRST, [278] = WRITE_FIRST, [276] = WRITE_SECOND,
        [275] = WRITE_THIRD, [326] = WRITE_THIRD,
        [155] = MOUNTED, [165] = MOUNTED, [166] = MOUNTED, [429] = MOUNTED,
        [188] = SETXATTR, [189] = LSETXATTR, [190] = FSETXATTR, [463] = SETXATTRAT,
        [197] = REMOVEXATTR, [198] = LREMOVEXATTR, [199] = FREMOVEXATTR, [466] = REMOVEXATTRAT,
        [469] = FILE_SETATTR, [132] = UTIME, [235] = UTIMES, [261] = FUTIMESAT, [280] = UTIMENSAT,
        [163] = ACCT, [428] = OPEN_TREE, [467] = OPEN_TREE_ATTR, [240] = MQ_OPEN, [241] = MQ_UNLINK,
        [321] = BPF, [175] = INIT_MODULE, [313] = FINIT_MODULE, [300] = FANOTIFY_INIT,
        [101] = PTRACE, [310] = PROCESS_VM_READV, [311] = PROCESS_VM_WRITEV, [438] = PIDFD_GETFD,
        [49] = BIND, [43] = ACCEPT, [288] = ACCEPT4,
        [4] = STAT, [6] = LSTAT, [262] = NEWFSTATAT, [332] = STATX, [21] = ACCESS,
        [269] = FACCESSAT, [439] = FACCESSAT2, [89] = READLINK, [267] = READLINKAT, [161] = CHROOT,
        [41] = SOCKET, [62] = KILL, [200] = TKILL, [234] = TGKILL, [272] = UNSHARE, [105] = SETUID,
        [113] = SETREUID, [117] = SETRESUID, [298] = PERF_EVENT_OPEN, [248] = ADD_KEY,
        [68] = MSGGET, [29] = SHMGET, [170] = SETHOSTNAME, [0] = READ, [17] = READ, [19] = READ,
        [45] = RECVFROM, [47] = RECVFROM, [217] = GETDENTS64,
    },
    .compat = {
        [5] = OPEN, [8] = CREAT, [295] = OPENAT, [437] = OPENAT2, [342] = OPEN_BY_HANDLE_AT,
        [10] = UNLINK, [301] = UNLINKAT, [38] = RENAME, [302] = RENAMEAT, [353] = RENAMEAT2,
        [39] = MKDIR, [296] = MKDIRAT, [40] = RMDIR, [9] = LINK, [303] = LINKAT, [83] = SYMLINK,
        [304] = SYMLINKAT, [15] = CHMOD, [94] = FCHMOD, [306] = FCHMODAT, [452] = FCHMODAT2,
        [182] = CHOWN16, [95] = FCHOWN16, [16] = LCHOWN16, [212] = CHOWN, [207] = FCHOWN,
        [198] = LCHOWN, [298] = FCHOWNAT, [92] = TRUNCATE, [93] = FTRUNCATE, [193] = TRUNCATE64,
        [194] = FTRUNCATE64, [14] = MKNOD, [297] = MKNODAT, [362] = CONNECT, [369] = SENDTO,
        [370] = SENDMSG, [345] = SENDMMSG, [11] = EXECVE, [358] = EXECVEAT, [425] = IO_URING_SETUP,
        [102] = SOCKETCALL,
        [4] = WRITE_FIRST, [181] = WRITE_FIRST, [146] = WRITE_FIRST, [334] = WRITE_FIRST,
        [379] = WRITE_FIRST, [187] = WRITE_FIRST, [239] = WRITE_FIRST, [316] = WRITE_FIRST,
        [315] = WRITE_SECOND, [313] = WRITE_THIRD, [377] = WRITE_THIRD,
        [21] = MOUNTED, [22] = MOUNTED, [52] = MOUNTED, [217] = MOUNTED, [429] = MOUNTED,
        [226] = SETXATTR, [227] = LSETXATTR, [228] = FSETXATTR, [463] = SETXATTRAT,
        [235] = REMOVEXATTR, [236] = LREMOVEXATTR, [237] = FREMOVEXATTR, [466] = REMOVEXATTRAT,
        [469] = FILE_SETATTR, [30] = UTIME, [271] = UTIMES, [299] = FUTIMESAT, [320] = UTIMENSAT,
        [412] = UTIMENSAT, [51] = ACCT, [428] = OPEN_TREE, [467] = OPEN_TREE_ATTR, [277] = MQ_OPEN,
        [278] = MQ_UNLINK, [357] = BPF, [128] = INIT_MODULE, [350] = FINIT_MODULE,
        [338] = FANOTIFY_INIT, [26] = PTRACE, [347] = PROCESS_VM_READV, [348] = PROCESS_VM_WRITEV,
        [438] = PIDFD_GETFD, [361] = BIND, [364] = ACCEPT4,
        [106] = STAT, [195] = STAT, [107] = LSTAT, [196] = LSTAT, [300] = NEWFSTATAT, [383] = STATX,
        [33] = ACCESS, [307] = FACCESSAT, [439] = FACCESSAT2, [85] = READLINK, [305] = READLINKAT,
        [61] = CHROOT, [359] = SOCKET, [37] = KILL, [238] = TKILL, [270] = TGKILL, [310] = UNSHARE,
        [23] = SETUID, [213] = SETUID, [70] = SETREUID, [203] = SETREUID, [164] = SETRESUID,
        [208] = SETRESUID, [336] = PERF_EVENT_OPEN, [286] = ADD_KEY, [399] = MSGGET, [395] = SHMGET,
        [74] = SETHOSTNAME, [3] = READ, [180] = READ, [145] = READ, [371] = RECVFROM,
        [372] = RECVFROM, [220] = GETDENTS64,
    },
#else
    .native = {
        [56] = OPENAT, [437] = OPENAT2, [265] = OPEN_BY_HANDLE_AT, [35] = UNLINKAT, [38] = RENAMEAT,
        [276] = RENAMEAT2, [34] = MKDIRAT, [37] = LINKAT, [36] = SYMLINKAT, [52] = FCHMOD,
        [53] = FCHMODAT, [452] = FCHMODAT2, [55] = FCHOWN, [54] = FCHOWNAT, [45] = TRUNCATE,
        [46] = FTRUNCATE, [33] = MKNODAT, [203] = CONNECT, [206] = SENDTO, [211] = SENDMSG,
        [269] = SENDMMSG, [221] = EXECVE, [281] = EXECVEAT, [425] = IO_URING_SETUP,
        [64] = WRITE_FIRST, [68] = WRITE_FIRST, [66] = WRITE_FIRST, [70] = WRITE_FIRST,
        [287] = WRITE_FIRST, [71] = WRITE_FIRST, [75] = WRITE_FIRST, [77] = WRITE_SECOND,
        [76] = WRITE_THIRD, [285] = WRITE_THIRD,
        [39] = MOUNTED, [40] = MOUNTED, [41] = MOUNTED, [429] = MOUNTED,
        [5] = SETXATTR, [6] = LSETXATTR, [7] = FSETXATTR, [463] = SETXATTRAT, [14] = REMOVEXATTR,
        [15] = LREMOVEXATTR, [16] = FREMOVEXATTR, [466] = REMOVEXATTRAT, [469] = FILE_SETATTR,
        [88] = UTIMENSAT, [89] = ACCT, [428] = OPEN_TREE, [467] = OPEN_TREE_ATTR, [180] = MQ_OPEN,
        [181] = MQ_UNLINK, [280] = BPF, [105] = INIT_MODULE, [273] = FINIT_MODULE,
        [262] = FANOTIFY_INIT, [117] = PTRACE, [270] = PROCESS_VM_READV, [271] = PROCESS_VM_WRITEV,
        [438] = PIDFD_GETFD, [200] = BIND, [202] = ACCEPT, [242] = ACCEPT4,
        [79] = NEWFSTATAT, [291] = STATX, [48] = FACCESSAT, [439] = FACCESSAT2, [78] = READLINKAT,
        [51] = CHROOT, [198] = SOCKET, [129] = KILL, [130] = TKILL, [131] = TGKILL, [97] = UNSHARE,
        [146] = SETUID, [145] = SETREUID, [147] = SETRESUID, [241] = PERF_EVENT_OPEN,
        [217] = ADD_KEY, [186] = MSGGET, [194] = SHMGET, [161] = SETHOSTNAME, [63] = READ,
        [67] = READ, [65] = READ, [207] = RECVFROM, [212] = RECVFROM, [61] = GETDENTS64,
    },
#endif
    .shapes = {
        //            dirfd path  to    to    flags mode  size  in the books
        [OPEN] = SHAPE(CWD, 0, NONE, NONE, 1, 2, NONE, 1),
        [CREAT] = SHAPE(CWD, 0, NONE, NONE, NONE, 1, NONE, 1),
        [OPENAT] = SHAPE(0, 1, NONE, NONE, 2, 3, NONE, 1),
        [OPENAT2] = SHAPE(0, 1, NONE, NONE, NONE, NONE, NONE, 1),
        [OPEN_BY_HANDLE_AT] = SHAPE(NONE, NONE, NONE, NONE, 2, NONE, NONE, 1),
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
        // Of an attribute the second path is its name: it starts nowhere.
        [SETXATTR] = SHAPE(CWD, 0, NONE, 1, 4, NONE, 3, 6),
        [LSETXATTR] = SHAPE(CWD, 0, NONE, 1, 4, NONE, 3, 6),
        [FSETXATTR] = SHAPE(0, NONE, NONE, 1, 4, NONE, 3, 6),
        [SETXATTRAT] = SHAPE(0, 1, NONE, 3, 2, NONE, NONE, 6),
        [REMOVEXATTR] = SHAPE(CWD, 0, NONE, 1, NONE, NONE, NONE, 6),
        [LREMOVEXATTR] = SHAPE(CWD, 0, NONE, 1, NONE, NONE, NONE, 6),
        [FREMOVEXATTR] = SHAPE(0, NONE, NONE, 1, NONE, NONE, NONE, 6),
        [REMOVEXATTRAT] = SHAPE(0, 1, NONE, 3, 2, NONE, NONE, 6),
        [FILE_SETATTR] = SHAPE(0, 1, NONE, NONE, 4, NONE, NONE, 6),
        [UTIME] = SHAPE(CWD, 0, NONE, NONE, NONE, NONE, NONE, 6),
        [UTIMES] = SHAPE(CWD, 0, NONE, NONE, NONE, NONE, NONE, 6),
        [FUTIMESAT] = SHAPE(0, 1, NONE, NONE, NONE, NONE, NONE, 6),
        [UTIMENSAT] = SHAPE(0, 1, NONE, NONE, 3, NONE, NONE, 6),
        [ACCT] = SHAPE(CWD, 0, NONE, NONE, NONE, NONE, NONE, 7),
        [OPEN_TREE] = SHAPE(0, 1, NONE, NONE, 2, NONE, NONE, 1),
        [OPEN_TREE_ATTR] = SHAPE(0, 1, NONE, NONE, 2, NONE, NONE, 1),
        [MQ_OPEN] = SHAPE(NONE, 0, NONE, NONE, 1, 2, NONE, 4),
        [MQ_UNLINK] = SHAPE(NONE, 0, NONE, NONE, NONE, NONE, NONE, 2),
        [BPF] = SHAPE(NONE, NONE, NONE, NONE, 0, NONE, NONE, 11),
        [INIT_MODULE] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 11),
        [FINIT_MODULE] = SHAPE(0, NONE, NONE, NONE, NONE, NONE, NONE, 11),
        [FANOTIFY_INIT] = SHAPE(NONE, NONE, NONE, NONE, 0, NONE, NONE, 11),
        [PTRACE] = SHAPE(NONE, NONE, NONE, NONE, 0, NONE, NONE, 11),
        [PROCESS_VM_READV] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 11),
        [PROCESS_VM_WRITEV] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 11),
        [PIDFD_GETFD] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 11),
        [BIND] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 8),
        [ACCEPT] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 8),
        [ACCEPT4] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 8),
        [CONNECT] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 8),
        [SENDTO] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 9),
        [SENDMSG] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 9),
        [SENDMMSG] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 9),
        [EXECVE] = SHAPE(CWD, 0, NONE, NONE, NONE, NONE, NONE, 10),
        [EXECVEAT] = SHAPE(0, 1, NONE, NONE, 4, NONE, NONE, 10),
        [IO_URING_SETUP] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 11),
        // A look at a file counts with the opens, whatever else only somebody who looks closer sees
        // with the last ones.
        [STAT] = SHAPE(CWD, 0, NONE, NONE, NONE, NONE, NONE, 1),
        [LSTAT] = SHAPE(CWD, 0, NONE, NONE, NONE, NONE, NONE, 1),
        [NEWFSTATAT] = SHAPE(0, 1, NONE, NONE, 3, NONE, NONE, 1),
        [STATX] = SHAPE(0, 1, NONE, NONE, 2, NONE, NONE, 1),
        [ACCESS] = SHAPE(CWD, 0, NONE, NONE, NONE, NONE, NONE, 1),
        [FACCESSAT] = SHAPE(0, 1, NONE, NONE, NONE, NONE, NONE, 1),
        [FACCESSAT2] = SHAPE(0, 1, NONE, NONE, 3, NONE, NONE, 1),
        [READLINK] = SHAPE(CWD, 0, NONE, NONE, NONE, NONE, NONE, 1),
        [READLINKAT] = SHAPE(0, 1, NONE, NONE, NONE, NONE, NONE, 1),
        [CHROOT] = SHAPE(CWD, 0, NONE, NONE, NONE, NONE, NONE, 1),
        [READ] = SHAPE(0, NONE, NONE, NONE, NONE, NONE, NONE, 15),
        [RECVFROM] = SHAPE(0, NONE, NONE, NONE, NONE, NONE, NONE, 15),
        [GETDENTS64] = SHAPE(0, NONE, NONE, NONE, NONE, NONE, NONE, 15),
        [WRITE] = SHAPE(0, NONE, NONE, NONE, NONE, NONE, NONE, 15),
        [SOCKET] = SHAPE(NONE, NONE, NONE, NONE, 0, NONE, NONE, 15),
        [KILL] = SHAPE(NONE, NONE, NONE, NONE, 0, NONE, NONE, 15),
        [TKILL] = SHAPE(NONE, NONE, NONE, NONE, 0, NONE, NONE, 15),
        [TGKILL] = SHAPE(NONE, NONE, NONE, NONE, 0, NONE, NONE, 15),
        [MOUNT] = SHAPE(NONE, NONE, NONE, NONE, 0, NONE, NONE, 15),
        [UNSHARE] = SHAPE(NONE, NONE, NONE, NONE, 0, NONE, NONE, 15),
        [SETUID] = SHAPE(NONE, NONE, NONE, NONE, 0, NONE, NONE, 15),
        [SETREUID] = SHAPE(NONE, NONE, NONE, NONE, 0, NONE, NONE, 15),
        [SETRESUID] = SHAPE(NONE, NONE, NONE, NONE, 0, NONE, NONE, 15),
        [PERF_EVENT_OPEN] = SHAPE(NONE, NONE, NONE, NONE, 0, NONE, NONE, 15),
        [ADD_KEY] = SHAPE(NONE, NONE, NONE, NONE, 0, NONE, NONE, 15),
        [MSGGET] = SHAPE(NONE, NONE, NONE, NONE, 0, NONE, NONE, 15),
        [SHMGET] = SHAPE(NONE, NONE, NONE, NONE, 0, NONE, NONE, 15),
        [SETHOSTNAME] = SHAPE(NONE, NONE, NONE, NONE, 0, NONE, NONE, 15),
        [EXEC] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 12),
        [FORK] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 13),
        [EXIT] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 14),
        [WROTE] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 15),
        [URING_RESULT] = SHAPE(NONE, NONE, NONE, NONE, NONE, NONE, NONE, 0),
    },
};
