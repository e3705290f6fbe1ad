/* Every call that a kernel feed reports, once and in order, in the folder where it is started. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALSO(call) \
    if (!fork()) { \
        call; \
        _exit(0); \
    } \
    wait(0)

static void opens(void) {
    struct open_how how = {.flags = O_RDWR | O_CREAT, .mode = 0600, .resolve = RESOLVE_BENEATH};
    char *no_place = 0;
    syscall(SYS_open, "legacy", O_WRONLY | O_CREAT, 0640);
    syscall(SYS_creat, "created", 0644);
    openat(AT_FDCWD, "missing", O_RDONLY);
    int folder = open(".", O_PATH | O_DIRECTORY);
    openat(folder, "./legacy", O_RDONLY);
    syscall(SYS_openat2, AT_FDCWD, "second", &how, sizeof how);
    openat(-1, "nowhere", O_RDONLY);
    openat(AT_FDCWD, no_place + 1, O_RDONLY);
    int gone = open("gone", O_RDWR | O_CREAT, 0600);
    unlink("gone");
    ftruncate(gone, 3);
}

static void files(void) {
    int folder = open(".", O_RDONLY), file = open("created", O_RDWR);
    mkdir("one", 0700);
    mkdirat(folder, "two", 0750);
    rmdir("one");
    unlinkat(folder, "two", AT_REMOVEDIR);
    symlink("to where", "soft");
    symlinkat("/to where", folder, "softer");
    link("created", "hard");
    linkat(folder, "created", AT_FDCWD, "harder", 0);
    rename("hard", "harm");
    renameat(folder, "harm", AT_FDCWD, "hard");
    renameat2(AT_FDCWD, "hard", folder, "harm", RENAME_NOREPLACE);
    unlink("soft");
    unlinkat(folder, "softer", 0);
    chmod("created", 0611);
    fchmod(file, 0622);
    syscall(SYS_fchmodat, folder, "created", 0633);
    chown("created", -1, -1);
    lchown("created", getuid(), -1);
    fchown(file, -1, getgid());
    fchownat(folder, "created", -1, -1, AT_SYMLINK_NOFOLLOW);
    fchownat(file, "", -1, -1, AT_EMPTY_PATH);
    truncate("created", 5000000000);
    ftruncate(file, 7);
    syscall(SYS_mknod, "pipe", S_IFIFO | 0600, 0);
    mknodat(folder, "pipes", S_IFIFO | 0640, 0);
    chdir("/");
    unlink("not/here");
    fchdir(folder);
    unlink("not/here");
}

static void peers(void) {
    struct iovec bytes = {"secret", 6};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(9)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(9)};
    struct sockaddr_un local = {.sun_family = AF_UNIX, .sun_path = "no\n\"socket"};
    struct mmsghdr two[2] = {0};
    four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    six.sin6_addr = in6addr_loopback;
    int plain = socket(AF_INET, SOCK_DGRAM, 0), stream = socket(AF_UNIX, SOCK_STREAM, 0);
    int newer = socket(AF_INET6, SOCK_DGRAM, 0);
    sendto(plain, "secret", 6, 0, (void *)&four, sizeof four);
    two[0].msg_hdr.msg_name = &four, two[0].msg_hdr.msg_namelen = sizeof four;
    two[0].msg_hdr.msg_iov = &bytes, two[0].msg_hdr.msg_iovlen = 1, two[1] = two[0];
    sendmsg(plain, &two[0].msg_hdr, 0);
    sendmmsg(plain, two, 2, 0);
    connect(newer, (void *)&six, sizeof six);
    connect(stream, (void *)&local, sizeof local);
    memcpy(local.sun_path, "\0no\n", 4);
    connect(stream, (void *)&local, sizeof(sa_family_t) + 4);
    connect(plain, (void *)&four, sizeof four);
    send(plain, "secret", 6, 0);
    two[0].msg_hdr.msg_name = 0, two[0].msg_hdr.msg_namelen = 0;
    sendmsg(plain, &two[0].msg_hdr, 0);
    four.sin_family = AF_UNSPEC;
    connect(plain, (void *)&four, sizeof four);
}

static void programs(void) {
    char *words[] = {"name", "a \"b\"\n", 0}, *none[] = {0};
    int folder = open("/", O_PATH);
    execve("/no/program", words, none);
    syscall(SYS_execveat, folder, "no/program", words, none, 0);
    ALSO(execve("/bin/true", words, none));
    ALSO(syscall(SYS_execveat, folder, "bin/true", words, none, 0));
    if (!vfork())
        _exit(3);
    wait(0);
    ALSO(raise(SIGKILL));
    syscall(SYS_io_uring_setup, 1, 0);
}

int main(int count, char **words) {
    void (*parts[])(void) = {opens, files, peers, programs};
    parts[atoi(words[1])]();
    return 0;
}
