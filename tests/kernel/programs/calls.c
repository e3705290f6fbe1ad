// calls CASE…: each case makes its calls in the working directory, in the order that the tests have.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/openat2.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#define SYS_setxattrat_ 463  // which older headers do not have
#define SYS_removexattrat_ 466
#define HERE AT_FDCWD

#define call(...) syscall(__VA_ARGS__)

static int folder(const char *name) { return call(SYS_openat, HERE, name, O_PATH | O_DIRECTORY); }

static void opens(void)
{
    struct open_how how = {.flags = O_RDWR | O_CREAT, .mode = 0640, .resolve = RESOLVE_NO_SYMLINKS};
    int at = folder("sub");
#ifdef SYS_open
    call(SYS_open, "given", O_RDONLY, 07777);
    call(SYS_open, "none", O_WRONLY);
    call(SYS_creat, "created", 0600);
#endif
    call(SYS_openat, HERE, "link", O_RDONLY | O_DIRECTORY, 0755);
    call(SYS_openat, at, "none", O_RDWR | O_APPEND);
    call(SYS_openat, at, "../given", O_RDONLY);
    call(SYS_openat, at, "/dev/null", O_WRONLY | O_TRUNC);
    call(SYS_openat, HERE, ".", O_TMPFILE | O_RDWR, 0600);
    call(SYS_openat2, HERE, "two", &how, sizeof how);
    call(SYS_openat2, at, "none/x", &how, sizeof how);
    call(SYS_openat2, at, "x", &how, 4);
    call(SYS_openat, HERE, "/", O_RDONLY);
    call(SYS_openat, 99, "x", O_RDONLY);
}

static void changes(void)
{
    int at = folder("sub"), fd = call(SYS_openat, HERE, "given", O_RDWR);
#ifdef SYS_mkdir
    call(SYS_mkdir, "d1", 0700);
    call(SYS_rmdir, "d1");
    call(SYS_mknod, "n1", S_IFIFO | 0600, 0);
    call(SYS_rename, "n1", "n2");
    call(SYS_link, "n2", "n3");
    call(SYS_symlink, "../target", "s1");
    call(SYS_chmod, "n3", 0640);
    call(SYS_chown, "n3", 1, 2);
    call(SYS_lchown, "s1", 3, -1);
    call(SYS_unlink, "n2");
    call(SYS_unlink, "none");
#endif
    call(SYS_mkdirat, at, "d2", 0750);
    call(SYS_mknodat, at, "f", S_IFREG | 0644, 0);
    call(SYS_renameat, at, "f", HERE, "f2");
    call(SYS_renameat2, HERE, "f2", at, "f3", RENAME_NOREPLACE);
    call(SYS_linkat, at, "f3", HERE, "f4", AT_SYMLINK_FOLLOW);
    call(SYS_linkat, fd, "", at, "f5", AT_EMPTY_PATH);
    call(SYS_symlinkat, "/nowhere", at, "s2");
    call(SYS_fchmod, fd, 04711);
    call(SYS_fchmodat, at, "f3", 0600);
    call(SYS_fchmodat2, at, "s2", 0600, AT_SYMLINK_NOFOLLOW);
    call(SYS_fchown, fd, 5, 6);
    call(SYS_fchownat, at, "f3", -1, 7, 0);
    call(SYS_fchownat, fd, "", 8, 9, AT_EMPTY_PATH);
    call(SYS_truncate, "given", 1L << 33);
    call(SYS_ftruncate, fd, 5);
    call(SYS_ftruncate, fd, -1L);
    call(SYS_ftruncate, 99, 1);
    call(SYS_unlinkat, at, "f3", 0);
    call(SYS_unlinkat, at, "d2", AT_REMOVEDIR);
}

static struct sockaddr_in internet(int last, int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    a.sin_addr.s_addr = htonl(0x7f000000 + last);
    return a;
}

static void peers(void)
{
    struct sockaddr_in one = internet(2, 77), two = internet(3, 78);
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(79)};
    struct sockaddr_un local = {.sun_family = AF_UNIX, .sun_path = "nobody.sock"};
    struct iovec word = {"hello", 5};
    struct mmsghdr several[2] = {{.msg_hdr = {&one, sizeof one, &word, 1}},
                                 {.msg_hdr = {&two, sizeof two, &word, 1}}};
    struct msghdr nobody = {.msg_iov = &word, .msg_iovlen = 1};
    int udp = socket(AF_INET, SOCK_DGRAM, 0), unix_ = socket(AF_UNIX, SOCK_STREAM, 0);
    int tcp = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    six.sin6_addr.s6_addr[15] = 1;
    call(SYS_sendto, udp, "x", 1, 0, &one, sizeof one);
    call(SYS_sendmsg, udp, &several[1].msg_hdr, 0);
    call(SYS_sendmmsg, udp, several, 2, 0);
    call(SYS_connect, udp, &one, sizeof one);
    call(SYS_sendto, udp, "x", 1, 0, NULL, 0);
    call(SYS_sendmsg, udp, &nobody, 0);
    call(SYS_connect, tcp, &two, sizeof two);
    call(SYS_connect, socket(AF_INET6, SOCK_DGRAM, 0), &six, sizeof six);
    call(SYS_connect, unix_, &local, sizeof local);
    memcpy(local.sun_path, "\0hidden", 7);
    call(SYS_connect, unix_, &local, 2 + 7);
    call(SYS_connect, udp, (void *)8, 16);
}

// What the kernel reads otherwise than it looks.
static void peers_oddly(void)
{
    struct sockaddr_in one = internet(2, 40077), two = internet(3, 78), none = internet(4, 79);
    struct sockaddr_un local = {.sun_family = AF_UNIX, .sun_path = "sub/nobody.sock"};
    struct iovec word = {"hello", 5};
    struct mmsghdr several[40] = {{{0}}};
    int udp = socket(AF_INET, SOCK_DGRAM, 0), six = socket(AF_INET6, SOCK_DGRAM, 0);
    int datagrams = socket(AF_UNIX, SOCK_DGRAM, 0);
    bind(socket(AF_INET, SOCK_DGRAM, 0), (void *)&one, sizeof one);  // else it is refused
    none.sin_family = AF_UNSPEC;
    call(SYS_sendto, udp, "x", 1, 0, &none, sizeof none);
    call(SYS_sendto, udp, "x", 1, 0, &none, 4);
    call(SYS_connect, udp, &one, sizeof one);
    for (int i = 0; i < 40; i++) {
        several[i].msg_hdr.msg_iov = &word;
        several[i].msg_hdr.msg_iovlen = 1;
    }
    several[1].msg_hdr.msg_name = several[39].msg_hdr.msg_name = &two;
    several[1].msg_hdr.msg_namelen = several[39].msg_hdr.msg_namelen = sizeof two;
    call(SYS_sendmmsg, udp, several, 40, 0);
    two.sin_port = 0;  // to which nothing can be sent
    several[2].msg_hdr.msg_name = &one;
    several[2].msg_hdr.msg_namelen = sizeof one;
    call(SYS_sendmmsg, udp, several + 1, 2, 0);
    several[2] = several[1];
    several[1].msg_hdr.msg_name = &one;
    call(SYS_sendmmsg, udp, several + 1, 4, 0);
    call(SYS_connect, six, &one, sizeof one);
    one.sin_addr.s_addr = 0;
    call(SYS_connect, udp, &one, sizeof one);
    call(SYS_connect, datagrams, &local, sizeof local);
    call(SYS_sendto, datagrams, "x", 1, 0, &local, sizeof local);
    none.sin_family = AF_UNSPEC;
    call(SYS_connect, udp, &none, sizeof none);
}

// As some machine's registers may hold it: only the lower half of a number counts.
static void halves(void)
{
#ifdef __x86_64__
    long high = 1L << 32, x32 = 1L << 30;
    call(high | SYS_openat, high | (unsigned)HERE, "given", high | O_RDONLY, 0);
    if (call(high | x32 | SYS_getpid) < 0)
        call(-1L << 32 | SYS_mkdir, "made", 0700);
#endif
}

// Until a task that does nothing but to go to sleep in one call sleeps in it.
static void await_sleep(const char *folder)
{
    char name[64], text[512], *state;
    sprintf(name, "%s/stat", folder);
    do {
        FILE *file = fopen(name, "r");
        if (!file || !fgets(text, sizeof text, file))
            exit(1);
        fclose(file);
        state = strrchr(text, ')');
    } while (!state || state[2] != 'S');
}

static void on_alarm(int number) {}

// A connect that waits for somebody who never answers: it begins, and a signal comes.
static void interrupted(void)
{
    struct sigaction action = {.sa_handler = on_alarm};
    struct sockaddr_in at = internet(1, 0);
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), waits = socket(AF_INET, SOCK_STREAM, 0);
    char name[64];
    if (bind(listener, (void *)&at, size) || listen(listener, 0)
        || getsockname(listener, (void *)&at, &size))
        exit(1);
    for (int i = 0; i < 2; i++)
        call(SYS_connect, socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), &at, size);
    sigaction(SIGALRM, &action, NULL);
    mkfifo("fifo", 0600);
    for (int i = 0; i < 4; i++) {
        pid_t child = fork();
        if (!child) {
            if (i < 2)
                call(SYS_connect, waits, &at, size);
            else
                call(SYS_openat, HERE, "fifo", O_RDONLY);
            _exit(errno);
        }
        sprintf(name, "/proc/%d", child);
        await_sleep(name);
        kill(child, i & 1 ? SIGALRM : SIGKILL);
        waitpid(child, NULL, 0);
    }
}

// To one, while a thread writes that it was another.
static volatile int is_going = 1;
static struct sockaddr_in passed, meant, other_one;
static void *says_another(void *nothing)
{
    while (is_going) {
        for (volatile int i = 0; i < 3000; i++)
            ;
        memcpy(&passed, &other_one, sizeof passed);
    }
    return nothing;
}
static void misled(void)
{
    pthread_t other;
    socklen_t size = sizeof meant;
    int listener = socket(AF_INET, SOCK_STREAM, 0), reached = 0;
    meant = internet(1, 0), other_one = internet(9, 443);
    if (bind(listener, (void *)&meant, size) || listen(listener, 4000)
        || getsockname(listener, (void *)&meant, &size))
        exit(1);
    pthread_create(&other, NULL, says_another, NULL);
    for (int i = 0; i < 500; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        memcpy(&passed, &meant, sizeof passed);
        reached += !call(SYS_connect, fd, &passed, size);
        close(fd);
    }
    is_going = 0;
    pthread_join(other, NULL);
    printf("%d to %d\n", reached, ntohs(meant.sin_port));
}

// Another file is put in the place of the one that is opened, before the call is over.
static volatile int exchanges, decoy;
static void *exchanges_files(void *nothing)
{
    while (is_going) {
        int fd = exchanges ? fcntl(20, F_DUPFD, 100) : -1;
        if (fd >= 0) {
            dup2(decoy, 20);
            close(fd);
            exchanges = 0;
        }
    }
    return nothing;
}
static void exchanged(void)
{
    pthread_t other;
    decoy = dup2(call(SYS_openat, HERE, "/usr/lib/os-release", O_RDONLY), 50);
    while (call(SYS_openat, HERE, "/dev/null", O_RDONLY) < 20)
        ;
    close(20);
    pthread_create(&other, NULL, exchanges_files, NULL);
    for (int i = 0; i < 300; i++) {
        exchanges = 1;
        call(SYS_openat, HERE, "given", O_RDONLY);
        while (exchanges)
            ;
        close(20);
    }
    is_going = 0;
    pthread_join(other, NULL);
}

static void odd(void)
{
    char *path = malloc(8192), name[256];
    memset(path, '/', 8192);
    memcpy(path + 4092, "tmp", 4);
    call(SYS_openat, HERE, path, O_RDONLY);  // 4,095 bytes
    memset(path, 'x', 8192);
    path[5000] = 0;
    call(SYS_openat, HERE, path, O_RDONLY);
    call(SYS_openat, HERE, NULL, O_RDONLY);
    call(SYS_openat, HERE, "", O_RDONLY);
    call(SYS_openat, HERE, "a\n\"q\\\xff\xfe\x01", O_RDONLY | O_CREAT, 0600);
    call(SYS_renameat, HERE, "given", HERE, NULL);
    call(SYS_mkdirat, HERE, (char *)8, 0700);
    call(SYS_execve, (char *)8, NULL, NULL);
    int gone = call(SYS_openat, HERE, "gone", O_CREAT | O_RDWR, 0600);
    call(SYS_unlinkat, HERE, "gone", 0);
    sprintf(name, "/proc/self/fd/%d", gone);
    call(SYS_openat, HERE, name, O_RDONLY);
    call(SYS_fchmod, gone, 0644);
    int ends[2];
    if (pipe(ends))
        exit(1);
    sprintf(name, "/proc/self/fd/%d", ends[0]);
    call(SYS_openat, HERE, name, O_RDONLY | O_NONBLOCK);
}

// By what a process has itself: /proc/self/fd/N and its like.
static void *opens_own(void *nothing)
{
    char name[64];
    if (unshare(CLONE_FILES))
        exit(1);
    sprintf(name, "/proc/thread-self/fd/%d/none", dup2(folder("given-to-thread"), 20));
    call(SYS_openat, HERE, name, O_RDONLY);
    call(SYS_openat, HERE, "/proc/self/fd/20/none", O_RDONLY);
    return nothing;
}
static void views(void)
{
    struct open_how rooted = {.flags = O_RDONLY, .resolve = RESOLVE_IN_ROOT};
    char name[64];
    pthread_t other;
    mkdir("given-to-thread", 0700);
    int at = dup2(folder("sub"), 14);
    dup2(call(SYS_openat, HERE, "given", O_RDWR), 15);
    call(SYS_openat, HERE, "/proc/self/fd/14/a", O_CREAT | O_WRONLY, 0600);
    call(SYS_renameat, HERE, "/proc/self/fd/14/a", HERE, "/proc/thread-self/fd/14/b");
    call(SYS_renameat, HERE, "given", at, "/dev/fd/14/../moved");
    call(SYS_linkat, HERE, "/dev/fd/14//./b", HERE, "c", 0);
    call(SYS_linkat, HERE, "/proc/self/fd/15", HERE, "d", AT_SYMLINK_FOLLOW);
    call(SYS_linkat, HERE, "/proc/self/fd/15", HERE, "e", 0);
    call(SYS_symlinkat, "/proc/self/fd/14/b", HERE, "/proc/self/cwd/s");
    call(SYS_fchmodat, HERE, "/proc/self/fd/15", 0600);
    call(SYS_truncate, "/dev/fd/15/", 3L);
    call(SYS_unlinkat, HERE, "/proc/self/fd/15", 0);
    call(SYS_unlinkat, HERE, "/proc/self/fd/14/b", 0);
    call(SYS_mkdirat, HERE, "/proc/self/cwd/made", 0700);
    call(SYS_openat, HERE, "/proc/self/root/no/where", O_RDONLY);
    sprintf(name, "/proc/%d/fd/14/none", getpid());
    call(SYS_openat, HERE, name, O_RDONLY);
    call(SYS_openat, HERE, "/proc/1/fd/14/none", O_RDONLY);
    call(SYS_openat, HERE, "/proc/self/fd/99/x", O_RDONLY);
    call(SYS_openat, HERE, "/proc/self/fd/014/x", O_RDONLY);
    call(SYS_openat, HERE, "/proc/self/fd/14x/x", O_RDONLY);
    call(SYS_openat, HERE, "/proc/self/fd/4294967310/x", O_RDONLY);
    call(SYS_openat, HERE, "/proc/self/fdinfo/14/x", O_RDONLY);
    call(SYS_openat, HERE, "/proc/self/cwdx/x", O_RDONLY);
    call(SYS_openat, HERE, "/proc/self/fd//x", O_RDONLY);
    call(SYS_openat, HERE, "/proc/self/fd/15", O_RDONLY | O_NOFOLLOW);
    call(SYS_openat, HERE, "/proc/self/fd/15", O_RDONLY | O_DIRECTORY);
    call(SYS_openat2, at, "/proc/self/fd/14/none", &rooted, sizeof rooted);
    pthread_create(&other, NULL, opens_own, NULL);
    pthread_join(other, NULL);
}

// By a handle, which is no path.
static void handles(void)
{
    struct { struct file_handle head; char data[MAX_HANDLE_SZ]; } handle = {{MAX_HANDLE_SZ}};
    int mount;
    if (name_to_handle_at(HERE, "sub", &handle.head, &mount, 0))
        exit(77);
    mount = call(SYS_openat, HERE, ".", O_RDONLY);
    call(SYS_open_by_handle_at, mount, &handle, O_RDONLY | O_DIRECTORY);
    call(SYS_open_by_handle_at, mount, NULL, O_RDWR);
}

// Deeper than what is followed; then, once it is too deep, up again.
static void deep(void)
{
    for (int i = 0; i < 300; i++) {
        call(SYS_mkdirat, HERE, "d", 0700);
        if (chdir("d"))
            exit(1);
        if (i == 99 || i == 299)
            call(SYS_openat, HERE, "leaf", O_CREAT | O_WRONLY, 0600);
    }
    call(SYS_openat, HERE, "none", O_RDONLY);
}

// 32-bit calls of a 64-bit program: pointers below 4 GiB.
static void compat(void)
{
#ifdef __x86_64__
    char *low = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    struct sockaddr_in *peer = (void *)(low + 1024);
    unsigned *args = (void *)(low + 2048);
    int udp = socket(AF_INET, SOCK_DGRAM, 0), free_ = socket(AF_INET, SOCK_DGRAM, 0);
#define int80(nr, a, b, c, d, e) ({ long r_; register long d_ asm("rsi") = (long)(d);            \
    register long e_ asm("rdi") = (long)(e);                                                     \
    asm volatile("int $0x80" : "=a"(r_)                                                          \
        : "a"(nr), "b"((long)(a)), "c"((long)(b)), "d"((long)(c)), "r"(d_), "r"(e_) : "memory"); r_; })
    strcpy(low, "given");
    strcpy(low + 512, "moved");
    *peer = internet(2, 77);
    int80(5, low, O_RDONLY, 0, 0, 0);
    int80(8, low + 512, 0600, 0, 0, 0);
    int80(295, HERE, low, O_RDWR | O_CREAT, 0640, 0);
    int80(182, low, 0xffff, 7, 0, 0);
    int80(198, low, -1, 70000, 0, 0);
    int80(92, low, 9, 0, 0, 0);
    int80(193, low, 5, 2, 0, 0);
    int80(38, low, low + 512, 0, 0, 0);
    int80(9, low + 512, low, 0, 0, 0);
    int80(10, low + 512, 0, 0, 0, 0);
    int80(83, low, low + 512, 0, 0, 0);
    int80(302, HERE, low + 512, HERE, low, 0);
    int80(301, HERE, low, 0, 0, 0);
    int80(39, low, 0700, 0, 0, 0);
    int80(40, low, 0, 0, 0, 0);
    int80(14, low, S_IFIFO | 0600, 0, 0, 0);
    int80(15, low, 0611, 0, 0, 0);
    int80(362, udp, peer, sizeof *peer, 0, 0);
    args[0] = udp, args[1] = (unsigned)(long)peer, args[2] = sizeof *peer;
    int80(102, 3, args, 0, 0, 0);
    args[0] = free_, args[1] = (unsigned)(long)low, args[2] = 1, args[3] = 0;
    args[4] = (unsigned)(long)peer, args[5] = sizeof *peer;
    int80(102, 11, args, 0, 0, 0);
    unsigned *message = args + 16;
    memset(message, 0, 64);
    message[0] = (unsigned)(long)peer, message[1] = sizeof *peer;
    args[0] = free_, args[1] = (unsigned)(long)message, args[2] = 0;
    int80(102, 16, args, 0, 0, 0);
    int80(370, free_, message, 0, 0, 0);
    int80(11, low + 512, 0, 0, 0, 0);
#endif
}

static void *opens_one(void *path) { return (void *)call(SYS_openat, HERE, path, O_RDONLY); }
static void *executes(void *word)
{
    char *argv[] = {"/proc/self/exe", word, NULL}, *env[] = {NULL};
    call(SYS_execve, argv[0], argv, env);
    return NULL;
}

static void thread(void)
{
    pthread_t other;
    pthread_create(&other, NULL, opens_one, "from-thread");
    pthread_join(other, NULL);
    pthread_create(&other, NULL, executes, "nothing");
    pthread_join(other, NULL);
}

static void execs(void)
{
    char *argv[] = {"first", "a\xff b", "", NULL}, *env[] = {NULL};
    int sub = folder("sub"), self = call(SYS_openat, HERE, "/proc/self/exe", O_RDONLY);
    call(SYS_execve, "none", argv, env);
    call(SYS_execveat, sub, "none", argv, env, AT_SYMLINK_NOFOLLOW);
    call(SYS_execveat, 99, "", argv, env, AT_EMPTY_PATH);
    if (!fork()) {
        call(SYS_execveat, self, "", argv, env, AT_EMPTY_PATH);
        _exit(1);
    }
    wait(NULL);
    if (!fork()) {
        call(SYS_execve, "script", argv, env);
        _exit(1);
    }
    wait(NULL);
}

static void families(void)
{
    int status;
    if (!fork()) {
        setsid();
        if (!fork()) {
            call(SYS_openat, HERE, "from-daemon", O_RDONLY);
            _exit(3);
        }
        _exit(0);
    }
    wait(&status);
    pid_t child = fork();
    if (!child)
        for (;;)
            pause();
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
}

// Both threads leave at the same time: each of them may find itself to be the last.
static volatile int waiting;
static void *leaves(void *nothing)
{
    __atomic_add_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
    while (waiting < 2)
        ;
    call(SYS_exit, 0);
    return nothing;
}
static void endings(void)
{
    for (int i = 0; i < 300; i++) {
        if (!fork()) {
            pthread_t other;
            pthread_create(&other, NULL, leaves, NULL);
            leaves(NULL);
        }
        wait(NULL);
    }
}

static void blocked(void)
{
    char name[64];
    mkfifo("fifo", 0600);
    pid_t child = fork();
    if (!child) {
        call(SYS_openat, HERE, "fifo", O_RDONLY);
        _exit(0);
    }
    sprintf(name, "/proc/%d", child);
    await_sleep(name);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static char changing[64] = "fifo";
static volatile int sleeper;
static void *opens_changing(void *nothing)
{
    call(SYS_unshare, CLONE_FILES);  // or its descriptor has another number while the other one looks
    sleeper = call(SYS_gettid);
    call(SYS_openat, HERE, changing, O_RDONLY);
    return nothing;
}
static void changed(void)
{
    char name[64];
    pthread_t other;
    mkfifo("fifo", 0600);
    pthread_create(&other, NULL, opens_changing, NULL);
    while (!sleeper)
        ;
    sprintf(name, "/proc/self/task/%d", sleeper);
    await_sleep(name);
    strcpy(changing, "innocent");
    call(SYS_openat, HERE, "fifo", O_WRONLY);
    pthread_join(other, NULL);
}

// What a path is when the call returns need not be what it was when it was looked up.
static volatile char flipped[64] = "flip-A";
static void *flips(void *nothing)
{
    while (is_going) {
        flipped[5] = 'B';
        for (volatile int i = 0; i < 60; i++)
            ;
        flipped[5] = 'A';
        for (volatile int i = 0; i < 60; i++)
            ;
    }
    return nothing;
}
static void race(void)
{
    pthread_t other;
    int wrong = 0;
    pthread_create(&other, NULL, flips, NULL);
    for (int i = 0; i < 3000; i++) {
        int fd = open((char *)flipped, O_RDONLY);
        char byte = 0;
        if (fd < 0 || read(fd, &byte, 1) != 1)
            wrong++;
        else  // what was really read: the file of that name is opened for it once more
            call(SYS_openat, HERE, byte == 'A' ? "read-A" : "read-B", O_RDONLY);
        close(fd);
    }
    is_going = 0;
    pthread_join(other, NULL);
    exit(wrong);
}

static void uring(void)
{
    struct io_uring_params p = {0};
    int ring = call(SYS_io_uring_setup, 16, &p), udp = socket(AF_INET, SOCK_DGRAM, 0);
    if (ring < 0)
        exit(77);
    char *queue = mmap(0, p.sq_off.array + p.sq_entries * 4, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *e = mmap(0, p.sq_entries * sizeof *e, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
    unsigned *tail = (void *)(queue + p.sq_off.tail), *list = (void *)(queue + p.sq_off.array);
    struct sockaddr_in peer = internet(3, 88);
    struct open_how how = {.flags = O_WRONLY | O_CREAT, .mode = 0600};
    memset(e, 0, p.sq_entries * sizeof *e);
#define OP(i, op, at, one, ...) e[i] = (struct io_uring_sqe){.opcode = op, .fd = at,             \
        .addr = (unsigned long)(one), .user_data = i, .flags = IOSQE_IO_LINK, __VA_ARGS__}
    OP(0, IORING_OP_OPENAT, HERE, "given", .open_flags = O_RDONLY);
    OP(1, IORING_OP_OPENAT2, HERE, "by-ring", .off = (unsigned long)&how, .len = sizeof how);
    OP(2, IORING_OP_CONNECT, udp, &peer, .off = sizeof peer);
    OP(3, IORING_OP_MKDIRAT, HERE, "ring-dir", .len = 0700);
    OP(4, IORING_OP_SYMLINKAT, HERE, "target", .off = (unsigned long)"ring-link");
    OP(5, IORING_OP_LINKAT, HERE, "given", .off = (unsigned long)"ring-hard", .len = HERE);
    OP(6, IORING_OP_RENAMEAT, HERE, "ring-hard", .off = (unsigned long)"ring-moved", .len = HERE);
    OP(7, IORING_OP_UNLINKAT, HERE, "ring-moved", .unlink_flags = 0);
    OP(8, IORING_OP_UNLINKAT, HERE, "ring-dir", .unlink_flags = AT_REMOVEDIR);
    OP(9, IORING_OP_RENAMEAT, HERE, "/proc/self/cwd/by-ring", .len = HERE,
       .off = (unsigned long)"/proc/self/cwd/moved");
    OP(10, IORING_OP_OPENAT, HERE, "none", .open_flags = O_RDONLY);
    e[10].flags = IOSQE_ASYNC;
    for (int i = 0; i < 11; i++)
        list[i] = i;
    __atomic_store_n(tail, 11, __ATOMIC_RELEASE);
    call(SYS_io_uring_enter, ring, 11, 11, IORING_ENTER_GETEVENTS, NULL, 0);
}

// What else there is to change of a file: some file systems take no such attributes.
static void attributes(void)
{
    struct { unsigned long value; unsigned size, flags; } given = {(unsigned long)"vw", 2, 0};
    int at = folder("sub"), fd = call(SYS_openat, HERE, "given", O_RDWR);
    call(SYS_setxattr, "given", "user.a", "v", 1, 0);
    call(SYS_lsetxattr, "none", "user.b", "v", 1, 0);
    call(SYS_fsetxattr, fd, "user.c", "vw", 2, 1);
    call(SYS_removexattr, "given", "user.a");
    call(SYS_lremovexattr, "none", "user.b");
    call(SYS_fremovexattr, fd, "user.c");
    call(SYS_setxattrat_, at, "../given", AT_SYMLINK_NOFOLLOW, "user.d", &given, sizeof given);
    call(SYS_removexattrat_, fd, "", AT_EMPTY_PATH, "user.d");
    call(SYS_utimensat, at, "none", NULL, AT_SYMLINK_NOFOLLOW);
    call(SYS_utimensat, fd, NULL, NULL, 0);
    call(SYS_open_tree, at, "../given", 0);
    call(SYS_open_tree, HERE, "sub", 1);
    call(SYS_mq_open, "stream-calls", O_RDONLY, 0600, NULL);
    call(SYS_mq_unlink, "stream-calls");
}

// Into a child of its own, into itself, and into nobody.
static void reaches(void)
{
    char word[8] = "", *own = word;
    struct iovec here = {word, 8};
    pid_t child = fork();
    if (!child)
        for (;;)
            pause();
    call(SYS_ptrace, 0x4206, child, NULL, NULL);
    call(SYS_ptrace, 17, child, NULL, NULL);
    call(SYS_process_vm_readv, child, &here, 1, &(struct iovec){own, 8}, 1, 0);
    call(SYS_process_vm_writev, getpid(), &here, 1, &(struct iovec){own, 8}, 1, 0);
    call(SYS_pidfd_getfd, call(SYS_pidfd_open, child, 0), 0, 0);
    call(SYS_pidfd_getfd, -1, 0, 0);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static int listening(int family, void *address, socklen_t size)
{
    int fd = socket(family, SOCK_STREAM, 0);
    if (bind(fd, address, size) || listen(fd, 4))
        exit(1);
    return fd;
}

// Somebody comes, and writes down from which port; then others do by other ways.
static void guests(void)
{
    struct sockaddr_in at = internet(5, 0), from = internet(6, 0);
    struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    struct sockaddr_un door = {AF_UNIX, "sub/door"};
    socklen_t size = sizeof at, larger = sizeof any;
    int fours = listening(AF_INET, &at, size), all = listening(AF_INET6, &any, larger);
    int locals = listening(AF_UNIX, &door, sizeof door);
    FILE *ports = fopen("ports", "w");
    getsockname(fours, (void *)&at, &size);
    getsockname(all, (void *)&any, &larger);
    for (int i = 0; i < 2; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        from.sin_port = 0;
        at.sin_port = i ? any.sin6_port : at.sin_port;
        if (bind(fd, (void *)&from, size) || connect(fd, (void *)&at, size)
            || getsockname(fd, (void *)&from, &size))
            exit(1);
        fprintf(ports, "%d %d\n", ntohs(at.sin_port), ntohs(from.sin_port));
        call(SYS_accept4, i ? all : fours, NULL, NULL, 0);
        call(SYS_accept4, i ? all : fours, NULL, NULL, -1);
    }
    fclose(ports);
    if (connect(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&door, sizeof door))
        exit(1);
    call(SYS_accept4, locals, NULL, NULL, 0);
}

static void request(struct io_uring_sqe what)
{
    struct io_uring_params p = {0};
    int ring = call(SYS_io_uring_setup, 4, &p);
    if (ring < 0)
        exit(77);
    char *queue = mmap(0, p.sq_off.array + p.sq_entries * 4, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *e = mmap(0, p.sq_entries * sizeof *e, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
    *e = what;
    *(unsigned *)(queue + p.sq_off.array) = 0;
    __atomic_store_n((unsigned *)(queue + p.sq_off.tail), 1, __ATOMIC_RELEASE);
    call(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0);
}

static void uring_send(void)
{
    struct sockaddr_in peer = internet(3, 88);
    struct iovec word = {"hello", 5};
    struct msghdr message = {&peer, sizeof peer, &word, 1};
    request((struct io_uring_sqe){.opcode = IORING_OP_SENDMSG, .addr = (unsigned long)&message,
                                  .fd = socket(AF_INET, SOCK_DGRAM, 0), .len = 1});
}

static void uring_attribute(void)
{
    request((struct io_uring_sqe){.opcode = IORING_OP_SETXATTR, .addr = (unsigned long)"user.ring",
                                  .addr2 = (unsigned long)"x", .len = 1,
                                  .addr3 = (unsigned long)"given"});
}

// What comes on descriptor 0, without a call that shows it.
static void uring_append(void)
{
    char line[4096];
    long size = read(0, line, sizeof line);
    int next = dup(0);
    close(next);  // the first ring's, and the file's is the one behind it
    request((struct io_uring_sqe){.opcode = IORING_OP_OPENAT, .fd = HERE, .addr = (unsigned long)"other",
                                  .open_flags = O_WRONLY | O_APPEND});
    request((struct io_uring_sqe){.opcode = IORING_OP_WRITE, .fd = next + 1, .off = -1,
                                  .addr = (unsigned long)line, .len = size});
}

static void uring_accept(void)
{
    request((struct io_uring_sqe){.opcode = IORING_OP_ACCEPT, .fd = -1});
}

// Into the pipe or file that is descriptor 1, in every way that there is.
static void writes(void)
{
    struct iovec words[2] = {{"two ", 4}, {"words", 5}};
    int ends[2], given = call(SYS_openat, HERE, "given", O_RDONLY);
    if (pipe(ends) || write(ends[1], "12345678", 8) != 8)
        exit(1);
    call(SYS_write, 1, "one", 3);
    call(SYS_write, ends[1], "elsewhere", 9);
    call(SYS_writev, 1, words, 2);
    call(SYS_pwritev2, 1, words, 2, -1L, -1L, 0);
    call(SYS_sendfile, 1, given, NULL, 5);
    call(SYS_tee, ends[0], 1, 8, 0);
    call(SYS_splice, ends[0], NULL, 1, NULL, 6, 0);
    call(SYS_vmsplice, 1, words, 1, 0);
    call(SYS_write, 1, "", 0);
    call(SYS_write, 1, (char *)8, 4);
}

// With another root, and then among mounts of its own.
static void roots(void)
{
    if (chroot("sub") || chdir("/"))
        exit(77);
    call(SYS_mkdirat, HERE, "/in", 0700);
    call(SYS_renameat, HERE, "in", HERE, "/../moved");
    call(SYS_symlinkat, "/etc/passwd", HERE, "/lib");
    call(SYS_openat, HERE, "/usr/lib/none", O_RDONLY);
    call(SYS_openat, HERE, "/proc/self/fd/0/none", O_RDONLY);
    call(SYS_fchmodat, HERE, "../../moved", 0711);
    call(SYS_execve, "/bin/none", NULL, NULL);
    call(SYS_unlinkat, HERE, "//./moved", AT_REMOVEDIR);
    exit(0);
}

static void mounts(void)
{
    char here[4096], path[5000];
    if (!getcwd(here, sizeof here) || unshare(CLONE_NEWNS)
        || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL)
        || mount("sub", "sub", NULL, MS_BIND, NULL))
        exit(77);
    sprintf(path, "%s/sub/x", here);
    call(SYS_mkdirat, HERE, path, 0700);
    call(SYS_unlinkat, HERE, "sub/x", AT_REMOVEDIR);
    call(SYS_execve, "/bin/none", NULL, NULL);
}

// A child mounts something among mounts that it has copied: on `sub`, from which it may come back.
static void propagated(void)
{
    call(SYS_openat, HERE, "sub/before", O_RDONLY);
    pid_t child = fork();
    if (!child)
        _exit(unshare(CLONE_NEWNS) || mount("given-folder", "sub/x", NULL, MS_BIND, NULL));
    waitpid(child, NULL, 0);
    call(SYS_openat, HERE, "sub/x/key", O_RDONLY);
}

// Files of a mount that lies nowhere.
static void nowhere(void)
{
    int tree = call(SYS_open_tree, HERE, "sub", OPEN_TREE_CLONE);
    if (tree < 0)
        exit(77);
    call(SYS_openat, tree, "lib/secret", O_RDONLY);
}

static void nothing(void) {}

static struct { const char *name; void (*run)(void); } cases[] = {
    {"opens", opens}, {"changes", changes}, {"peers", peers}, {"odd", odd}, {"deep", deep},
    {"compat", compat}, {"thread", thread}, {"execs", execs}, {"families", families},
    {"endings", endings}, {"blocked", blocked}, {"race", race}, {"changed", changed}, {"uring", uring},
    {"views", views}, {"roots", roots}, {"mounts", mounts}, {"nowhere", nowhere},
    {"propagated", propagated}, {"peers_oddly", peers_oddly}, {"halves", halves}, {"interrupted", interrupted},
    {"misled", misled}, {"exchanged", exchanged}, {"handles", handles}, {"uring_send", uring_send},
    {"uring_attribute", uring_attribute}, {"attributes", attributes}, {"reaches", reaches},
    {"guests", guests}, {"uring_accept", uring_accept}, {"uring_append", uring_append},
    {"writes", writes}, {"nothing", nothing},
};

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        for (unsigned k = 0; k < sizeof cases / sizeof *cases; k++)
            if (!strcmp(argv[i], cases[k].name))
                cases[k].run();
    return 0;
}
