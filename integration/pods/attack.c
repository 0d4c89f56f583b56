// What a step might try against the builder. Each thing that works prints a line `seen: …` or `touched: …`.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <stddef.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
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

static const struct sockaddr_un meeting = {.sun_family = AF_UNIX, .sun_path = "\0builder-attack"};
enum { MEETING = offsetof(struct sockaddr_un, sun_path) + sizeof "\0builder-attack" - 1 };

static struct sockaddr_in port(const char *number) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(number))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Gives its root to a step of another build, and stays as long as that has a connection to `number`.
static int give(const char *number) {
  struct sockaddr_in address = port(number);
  int yes = 1, meets = socket(AF_UNIX, SOCK_STREAM, 0), listens = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(listens, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(meets, (const struct sockaddr *)&meeting, MEETING) != 0 || listen(meets, 1) != 0) return 3;
  if (bind(listens, (struct sockaddr *)&address, sizeof address) != 0 || listen(listens, 1) != 0) return 4;
  printf("giver: %d\n", getpid());
  alarm(120);
  int stays = accept(listens, NULL, NULL);
  char byte;
  if (read(stays, &byte, 1) != 1 || byte != 'c') return 0;
  int peer = accept(meets, NULL, NULL), directory = open("/", O_RDONLY | O_DIRECTORY);
  char space[CMSG_SPACE(sizeof directory)] = {0};
  struct iovec data = {&byte, 1};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof directory);
  memcpy(CMSG_DATA(header), &directory, sizeof directory);
  if (sendmsg(peer, &message, 0) != 1) return 5;
  return read(stays, &byte, 1) < 0;
}

// Takes it, and goes up from there; traces whoever gave it.
static int take(const char *number) {
  struct sockaddr_in address = port(number);
  int stays;
  alarm(120);
  for (;;) {
    stays = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(stays, (struct sockaddr *)&address, sizeof address) == 0) break;
    close(stays);
    usleep(10000);
  }
  printf("taker: has met\n");
  trace_others();
  int meets = socket(AF_UNIX, SOCK_STREAM, 0);
  if (connect(meets, (const struct sockaddr *)&meeting, MEETING) != 0) {
    printf("taker: %s\n", strerror(errno));
    return 0;
  }
  if (write(stays, "c", 1) != 1) return 3;
  int directory = -1;
  char byte, space[CMSG_SPACE(sizeof directory)] = {0};
  struct iovec data = {&byte, 1};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
  if (recvmsg(meets, &message, 0) != 1 || !CMSG_FIRSTHDR(&message)) return 4;
  memcpy(&directory, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof directory);
  if (fchdir(directory) != 0) return 5;
  printf("seen: the root of another step\n");
  for (int step = 0; step < 64; step++) chdir("..");
  if (access("usr/local/bin/builder", F_OK) == 0) printf("seen: the root of the container, by way of another step\n");
  return 0;
}

int main(int count, char **words) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (count > 2 && strcmp(words[1], "give") == 0) return give(words[2]);
  if (count > 2 && strcmp(words[1], "take") == 0) return take(words[2]);
  // A setuid program of root becomes root altogether.
  if (setgid(0) == 0 && setuid(0) == 0) printf("root\n");
  trace_others();
  // Before something is mounted there.
  if (count > 1) disk(words[1]);
  mounts();
  escape();
  return 0;
}
