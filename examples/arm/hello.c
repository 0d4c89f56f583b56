/* Says what it was compiled for and who runs it. */
#include <stdio.h>
#include <unistd.h>

#if defined __ARM_PCS_VFP
#define FLOATS "hard"
#elif defined __arm__
#define FLOATS "soft"
#endif

int main(void) {
#if defined __x86_64__
  printf("hello from x86-64 code");
#elif defined __aarch64__
  printf("hello from ARMv%d code with 64 bits", __ARM_ARCH);
#else
  printf("hello from ARMv%d code with %s floats", __ARM_ARCH, FLOATS);
#endif
  printf(", as user %d\n", (int)getuid());
  return 0;
}
