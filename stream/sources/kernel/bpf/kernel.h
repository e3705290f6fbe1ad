// SPDX-License-Identifier: (MIT OR GPL-2.0)
// Of the kernel's structures what is used, and nothing more.
typedef __u8 u8;
typedef __s8 s8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;

// The loader finds where each of these lies in the kernel that runs.
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct qstr { const unsigned char *name; };
struct hlist_bl_node { struct hlist_bl_node **pprev; };
struct super_block { u32 s_dev; };
struct inode { unsigned long i_ino; struct super_block *i_sb; void *i_private; };
struct seqcount { unsigned int sequence; };
struct seqcount_spinlock { struct seqcount seqcount; };
struct dentry {
    struct seqcount_spinlock d_seq;
    struct hlist_bl_node d_hash;
    struct dentry *d_parent;
    struct qstr d_name;
};
struct vfsmount { struct dentry *mnt_root; };
struct ns_common { unsigned int inum; };
struct mnt_namespace { struct ns_common ns; u64 event; };
struct mount {
    struct mount *mnt_parent;
    struct dentry *mnt_mountpoint;
    struct vfsmount mnt;
    struct mnt_namespace *mnt_ns;
};
struct path { struct vfsmount *mnt; struct dentry *dentry; };
struct file { struct path f_path; struct inode *f_inode; void *private_data; };
struct in6_addr { u32 words[4]; };
struct sock_common { u32 skc_daddr; u16 skc_dport, skc_family; struct in6_addr skc_v6_daddr; };
struct sock { struct sock_common __sk_common; };
struct socket { struct file *file; struct sock *sk; };
struct sockaddr_un { u16 sun_family; };
struct unix_address { int len; struct sockaddr_un name[]; };
struct unix_sock { struct sock sk; struct unix_address *addr; struct path path; };
struct fdtable { unsigned int max_fds; struct file **fd; };
typedef struct { int counter; } atomic_t;
struct files_struct { atomic_t count; struct fdtable *fdt; };
struct fs_struct { struct path root, pwd; };
struct user_namespace { struct ns_common ns; };
struct net { struct ns_common ns; };
struct nsproxy { struct mnt_namespace *mnt_ns; struct net *net_ns; };
typedef struct { u32 val; } kuid_t;
typedef struct { u64 val; } kernel_cap_t;
struct cred {
    kuid_t fsuid;
    kernel_cap_t cap_effective;
    void *security;
    struct user_namespace *user_ns;
};
struct seccomp { int mode; };
struct signal_struct { atomic_t live; unsigned int flags; int group_exit_code; };
struct mm_struct { unsigned long arg_start, arg_end; struct file *exe_file; };
struct thread_info { unsigned long flags; u32 status; };
struct list_head { struct list_head *next; };
struct upid { int nr; };
struct pid { unsigned int level; struct upid numbers[1]; };
struct task_struct {
    struct thread_info thread_info;
    int pid, tgid, exit_code;
    unsigned int ptrace;
    const struct cred *cred;
    struct seccomp seccomp;
    u64 start_boottime;
    struct task_struct *group_leader;
    struct files_struct *files;
    struct fs_struct *fs;
    struct nsproxy *nsproxy;
    struct mm_struct *mm;
    struct signal_struct *signal;
    struct pid *thread_pid;
    struct list_head ptraced, ptrace_entry;
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

// How the kernel's memory is read; where it cannot be, there are zeros.
#ifdef DIRECT
// Newer kernels let it be read without a call. As what? Words are read as of the registers of a
// program: any structure would do that begins with as many words.
extern void *bpf_rdonly_cast(const void *from, u32 type) __ksym;
#define AS(type, from) ((type *)bpf_rdonly_cast(from, bpf_core_type_id_kernel(type)))
#define READ(from, field) (AS(typeof(*(from)), from)->field)
typedef u64 __attribute__((may_alias)) word;  // of whatever is read
#define READ_WORDS(to, from) ({                                                                  \
    const word *__from = (void *)AS(struct pt_regs, from);                                       \
    _Pragma("unroll") for (u32 __i = 0; __i < sizeof *(to) / 8; __i++)                           \
        ((word *)(to))[__i] = __from[__i]; })
#else
#define READ(from, field) BPF_CORE_READ(from, field)
#define READ_WORDS(to, from) bpf_probe_read_kernel(to, sizeof *(to), from)
#endif
