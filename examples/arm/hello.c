/* Says what it was compiled for and who runs it. */
#include <stdio.h>
#include <unistd.h>

#ifdef __ARM_PCS_VFP
#define FLOATS "hard"
#else
#define FLOATS "soft"
#endif

int main(void) {
  printf("hello from ARMv%d code with %s floats, as user %d\n", __ARM_ARCH, FLOATS, (int)getuid());
  return 0;
}
