// Programs and files that are known by a descriptor only, some of which have no name at all.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void fill(int file)
{
    char bytes[1 << 16];
    int self = open("/proc/self/exe", O_RDONLY);
    for (long n; (n = read(self, bytes, sizeof bytes)) > 0;)
        if (write(file, bytes, n) != n)
            _exit(2);
    close(self);
}

static void executed(int file, const char *path, int flags)
{
    char *argv[] = {"nothing", NULL};
    if (!fork()) {
        syscall(SYS_execveat, file, path, argv, environ, flags);
        _exit(9);
    }
    wait(NULL);
}

int main(int count, char **words)
{
    if (count < 2)
        return 0;
    char view[64];
    int memory = memfd_create("memory", 0), closing = memfd_create("closing", MFD_CLOEXEC);
    int file = open("file", O_RDWR | O_CREAT, 0755), folder = open(".", O_PATH);
    fill(memory), fill(closing), fill(file);
    close(file), file = open("file", O_PATH);
    executed(memory, "", AT_EMPTY_PATH);
    executed(closing, "", AT_EMPTY_PATH);
    executed(file, "", AT_EMPTY_PATH);
    executed(folder, "file", 0);
    executed(folder, "./file", AT_SYMLINK_NOFOLLOW);
    executed(AT_FDCWD, "file", 0);
    executed(99, words[0], 0);
    executed(folder, "", AT_EMPTY_PATH);
    executed(folder, "none", 0);
    unlink("file");
    executed(file, "", AT_EMPTY_PATH);
    fchmod(memory, 0700);
    fchown(memory, -1, -1);
    if (ftruncate(memory, 1))
        return 3;
    snprintf(view, sizeof view, "/proc/self/fd/%d", memory);
    close(open(view, O_RDONLY));
    if (truncate(view, 0))
        return 4;
    return 0;
}
