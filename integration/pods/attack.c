// What a step might try against the builder. Each thing that works prints a line `seen: …` or `touched: …`.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_open_tree
#define SYS_open_tree 428
#endif
#ifndef SYS_fsopen
#define SYS_fsopen 430
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

// The highest number of a process that is tried where there is no /proc.
enum { PROCESSES = 2000 };

static void trace(pid_t process) {
  char path[64], byte;
  if (ptrace(PTRACE_ATTACH, process, 0, 0) == 0) {
    printf("seen: process %d by attaching to it\n", process);
    waitpid(process, NULL, __WALL);
    ptrace(PTRACE_DETACH, process, 0, 0);
  }
  if (ptrace(PTRACE_SEIZE, process, 0, 0) == 0) {
    printf("seen: process %d by seizing it\n", process);
    ptrace(PTRACE_INTERRUPT, process, 0, 0);
    waitpid(process, NULL, __WALL);
    ptrace(PTRACE_DETACH, process, 0, 0);
  }
  // Whoever may read finds nothing at this address; whoever may not is not told.
  struct iovec local = {&byte, 1}, remote = {(void *)1, 1};
  if (process_vm_readv(process, &local, 1, &remote, 1, 0) >= 0 || errno == EFAULT)
    printf("seen: memory of process %d\n", process);
  snprintf(path, sizeof path, "/proc/%d/mem", process);
  int memory = open(path, O_RDWR);
  if (memory >= 0) printf("seen: %s\n", path);
  close(memory);
  static const char *const links[] = {"root", "cwd", "exe", "ns/mnt", "fd/0", "fd/1", "fd/2", "fd/3", "fd/4", "fd/5"};
  for (unsigned link = 0; link < sizeof links / sizeof *links; link++) {
    snprintf(path, sizeof path, "/proc/%d/%s", process, links[link]);
    if (readlink(path, path, sizeof path) >= 0) printf("seen: %s of process %d\n", links[link], process);
  }
  int handle = (int)syscall(SYS_pidfd_open, process, 0);
  int descriptor = handle < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, handle, 0, 0);
  if (descriptor >= 0) printf("seen: a descriptor of process %d\n", process);
}

// All processes but those of the step: it is one session, whose leader may be the one that holds the sandbox.
static void trace_others(void) {
  pid_t session = getsid(0), step = getenv("STEP") ? atoi(getenv("STEP")) : 0;
  int others = 0;
  for (pid_t process = 1; process < PROCESSES; process++) {
    if (kill(process, 0) != 0 && errno == ESRCH) continue;
    if (getsid(process) == session && (process != session || process == step)) continue;
    others++;
    trace(process);
  }
  printf("others: %d\n", others);
}

static void escape(void) {
  int directory = open("/", O_RDONLY | O_DIRECTORY);
  mkdir("/tmp/escape", 0755);
  if (chroot("/tmp/escape") != 0) {
    printf("chroot: %s\n", strerror(errno));
    return;
  }
  fchdir(directory);
  for (int step = 0; step < 64; step++) chdir("..");
  if (chroot(".") == 0 && access("/usr/local/bin/builder", F_OK) == 0) printf("seen: the root of the container\n");
}

// In a child: what works stays there.
static void attempt(const char *name, int (*function)(void)) {
  fflush(stdout);
  if (fork() == 0) {
    if (function() >= 0) printf("touched: %s\n", name);
    fflush(stdout);
    _exit(0);
  }
  wait(NULL);
}

static int mount_memory(void) { return mount("none", "/tmp", "tmpfs", 0, NULL); }
static int mount_again(void) { return mount("/", "/tmp", NULL, MS_BIND, NULL); }
static int mount_kernel(void) { return mount("proc", "/tmp", "proc", 0, NULL); }
static int remount(void) { return mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL); }
static int share(void) { return mount(NULL, "/", NULL, MS_SHARED | MS_REC, NULL); }
static int unmount(void) { return umount2("/proc", MNT_DETACH); }
static int unmount_hosts(void) { return umount2("/etc/hosts", MNT_DETACH); }
static int clone_tree(void) { return (int)syscall(SYS_open_tree, AT_FDCWD, "/", 1); }
static int new_mount(void) { return (int)syscall(SYS_fsopen, "tmpfs", 0); }
static int own_users(void) { return unshare(CLONE_NEWUSER); }
static int own_mounts(void) { return unshare(CLONE_NEWNS); }
static int other_mounts(void) { return setns(open("/proc/1/ns/mnt", O_RDONLY), CLONE_NEWNS); }

static void mounts(void) {
  attempt("mount of memory", mount_memory);
  attempt("mount of a directory", mount_again);
  attempt("mount of proc", mount_kernel);
  attempt("remount of the root", remount);
  attempt("propagation of the root", share);
  attempt("umount of /proc", unmount);
  attempt("umount of /etc/hosts", unmount_hosts);
  attempt("a copy of the mounts", clone_tree);
  attempt("a new mount", new_mount);
  attempt("users of its own", own_users);
  attempt("mounts of its own", own_mounts);
  attempt("mounts of process 1", other_mounts);
}

// The machine's disk.
static void disk(const char *number) {
  unsigned major, minor;
  char byte;
  if (sscanf(number, "%u:%u", &major, &minor) != 2) return;
  if (mknod("/tmp/disk", S_IFBLK | 0600, makedev(major, minor)) != 0) {
    printf("mknod: %s\n", strerror(errno));
    return;
  }
  int device = open("/tmp/disk", O_RDONLY);
  if (device >= 0 && read(device, &byte, 1) == 1) printf("seen: the disk %s\n", number);
  unlink("/tmp/disk");
}

int main(int count, char **words) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  // A setuid program of root becomes root altogether.
  if (setgid(0) == 0 && setuid(0) == 0) printf("root\n");
  trace_others();
  // Before something is mounted there.
  if (count > 1) disk(words[1]);
  mounts();
  escape();
  return 0;
}
