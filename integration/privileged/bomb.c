// Processes that start others and end, in a loop, each in a session of its own, faster than anybody can look at them.
//
// bomb KIND CHAINS SECONDS [stop]: so many at a time, for so long at the most; stops its parent first and stays.

#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static time_t deadline;
static char stacks[64][2][16384] __attribute__((aligned(16)));

static void check(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (now.tv_sec > deadline) _exit(0);
}

static void chain(void) {
  for (;;) {
    check();
    if (fork() > 0) _exit(0);
    setsid();
  }
}

static void twice(void) {
  for (;;) {
    check();
    if (fork() > 0) _exit(0);
    setsid();
    if (fork() > 0) _exit(0);
  }
}

// Stays for a moment beside its child.
static void overlap(void) {
  for (;;) {
    check();
    if (fork() > 0) {
      usleep(100);
      _exit(0);
    }
    setsid();
  }
}

// Without a copy of the memory, and as a sibling; two stacks take turns.
static int sibling(void *which) {
  long stack = (long)which;
  check();
  syscall(SYS_setsid);
  char *next = stacks[stack / 2][stack % 2 ^ 1];
  while (clone(sibling, next + sizeof stacks[0][0], CLONE_VM | CLONE_PARENT | SIGCHLD, (void *)(stack ^ 1)) < 0) check();
  syscall(SYS_exit, 0);
  return 0;
}

int main(int count, char **words) {
  if (count < 4) return 2;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  int stays = count > 4;
  if (stays && kill(getppid(), SIGSTOP)) return 2;
  deadline = now.tv_sec + atoi(words[3]);
  int chains = atoi(words[2]);
  for (long number = 0; number < chains && number < 64; number++) {
    if (fork() != 0) continue;
    for (int descriptor = 0; descriptor < 3; descriptor++) close(descriptor);
    if (!strcmp(words[1], "chain")) chain();
    if (!strcmp(words[1], "twice")) twice();
    if (!strcmp(words[1], "overlap")) overlap();
    if (!strcmp(words[1], "sibling")) sibling((void *)(number * 2));
    _exit(2);
  }
  // They have begun.
  usleep(20000);
  if (stays) {
    write(1, "ready\n", 6);
    for (;;) check(), usleep(20000);
  }
  return 7;
}
