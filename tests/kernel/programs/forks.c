// forks WORKERS EACH: so many workers have so many children each, a few of them at a time.
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define AT_ONCE 50

static int work(long number)
{
    for (long n = 0; n < number; n++) {
        pid_t child = fork();
        if (child < 0)
            return 1;
        if (!child)
            _exit(n % 7);
        if (n >= AT_ONCE && wait(NULL) < 0)
            return 1;
    }
    while (wait(NULL) > 0)
        ;
    return 0;
}

int main(int argc, char **argv)
{
    int status, worst = 0;
    if (argc != 3)
        return 1;
    for (long n = atol(argv[1]); n; n--) {
        pid_t worker = fork();
        if (worker < 0)
            return 1;
        if (!worker)
            _exit(work(atol(argv[2])));
    }
    while (wait(&status) > 0)
        worst |= status;
    return worst != 0;
}
