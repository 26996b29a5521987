/* Stands in for the CUDA runtime under a host function that the CuTe DSL compiled, and prints what it launches.
 *
 * Reads lines `m n k clusters`; for each prints
 *     shape M N K CLUSTERS
 *     launch GRID BLOCK CLUSTER SHARED PDL COOPERATIVE
 *     param INDEX HEX...      two digits a byte, `..` for bytes that nobody sets; of a tensor map the half that is read
 * Every call is made over stacks filled with different bytes: a byte that differs is padding, which is a property of the
 * host function and so holds for all its launches. The declarations below are of the CUDA runtime API's documented ABI;
 * INIT, LOAD, ENTRY and SIZES come from the command line. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned id; char pad[4]; union { char bytes[64]; unsigned words[16]; } value; } Attribute;
typedef struct { unsigned grid[3], block[3]; size_t shared; void *stream; Attribute *attributes; unsigned count; } Config;

enum { MOST = 64, LARGEST = 128, MOST_SHAPES = 4096 };
static const int sizes[] = {SIZES};
static const int parameters = sizeof sizes / sizeof *sizes;
typedef struct { unsigned grid[3], block[3], cluster[3], pdl, cooperative; size_t shared; unsigned char bytes[MOST][LARGEST]; int launches; } Launch;
typedef struct { int32_t m, n, k, clusters; } Shape;
static Launch *now;

int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  /* 97: shared memory that a block may opt in to */
  *value = attribute == 97 ? 232448 : attribute == 16 ? 148 : attribute == 75 ? 10 : 0;
  return 0;
}
int cudaLibraryLoadData(void **library, const void *code, void *a, void *b, unsigned c, void *d, void *e, unsigned f) {
  (void)code; (void)a; (void)b; (void)c; (void)d; (void)e; (void)f;
  *library = (void *)0x1000;
  return 0;
}
int cudaLibraryGetKernel(void **kernel, void *library, const char *name) { (void)library; (void)name; *kernel = (void *)0x2000; return 0; }
int cudaLibraryUnload(void *library) { (void)library; return 0; }
int cudaFuncSetAttribute(const void *function, int attribute, int value) { (void)function; (void)attribute; (void)value; return 0; }
int cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device) { (void)kernel; (void)attribute; (void)value; (void)device; return 0; }
static int kernel_attribute(int *value, int attribute, void *kernel, int device) { (void)attribute; (void)kernel; (void)device; *value = 0; return 0; }
int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags, int *result) {
  (void)symbol; (void)version; (void)flags;
  *function = (void *)kernel_attribute;
  if (result) *result = 0;
  return 0;
}
int cudaDriverGetVersion(int *version) { *version = 13000; return 0; }
const char *cudaGetErrorName(int error) { (void)error; return "error"; }
const char *cudaGetErrorString(int error) { (void)error; return "error"; }
int cudaGetLastError(void) { return 0; }
int cudaLaunchKernelExC(const Config *config, const void *function, void **arguments) {
  (void)function;
  memcpy(now->grid, config->grid, sizeof now->grid);
  memcpy(now->block, config->block, sizeof now->block);
  now->shared = config->shared;
  for (unsigned i = 0; i < config->count; i++) {
    const Attribute *attribute = &config->attributes[i];
    if (attribute->id == 4) memcpy(now->cluster, attribute->value.words, sizeof now->cluster);
    else if (attribute->id == 6) now->pdl = attribute->value.words[0];
    else if (attribute->id == 2) now->cooperative = attribute->value.words[0];
    else { fprintf(stderr, "launch attribute %u is not known\n", attribute->id); exit(3); }
  }
  for (int i = 0; i < parameters; i++) memcpy(now->bytes[i], arguments[i], sizes[i]);
  now->launches++;
  return 0;
}

void INIT(void **);
void LOAD(void **);
void ENTRY(void **arguments, int32_t count);

static __attribute__((noinline)) void poison(unsigned char byte) {
  volatile unsigned char stack[1 << 16];
  for (size_t i = 0; i < sizeof stack; i++) stack[i] = byte;
}

static void *library;
static __attribute__((noinline)) void call(Launch *launch, const Shape *shape) {
  /* Operands: addresses that nobody reads through. */
  void *a = (void *)0x7fa000000000, *b = (void *)0x7fb000000000, *c = (void *)0x7fc000000000;
  void *sfa = (void *)0x7fd000000000, *sfb = (void *)0x7fe000000000, *alpha = (void *)0x7ff000000000, *stream = 0;
  int32_t m = shape->m, n = shape->n, k = shape->k, clusters = shape->clusters, result = 0;
  void *arguments[] = {&a, &b, &c, &sfa, &sfb, &alpha, &m, &n, &k, &clusters, &stream, &result};
  memset(launch, 0, sizeof *launch);
  now = launch;
  ENTRY(arguments, 12);
  if (result != 0 || launch->launches != 1) {
    fprintf(stderr, "%d %d %d: result %d, %d launches\n", m, n, k, result, launch->launches);
    exit(4);
  }
}

static unsigned char padding[MOST][LARGEST];
static void find_padding(const Shape *shape) {
  static const unsigned char fillings[] = {0x5a, 0xa5, 0x00, 0xff};
  static Launch first, other;
  for (size_t filling = 0; filling < sizeof fillings; filling++) {
    Launch *launch = filling == 0 ? &first : &other;
    poison(fillings[filling]);
    call(launch, shape);
    for (int i = 0; i < parameters; i++)
      for (int j = 0; j < sizes[i]; j++) padding[i][j] |= launch->bytes[i][j] != first.bytes[i][j];
  }
}

static void print_launch(const Shape *shape) {
  static Launch launch;
  call(&launch, shape);
  const Launch *l = &launch;
  printf("shape %d %d %d %d\n", shape->m, shape->n, shape->k, shape->clusters);
  printf("launch %u,%u,%u %u,%u,%u %u,%u,%u %zu %u %u\n", l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2],
         l->cluster[0], l->cluster[1], l->cluster[2], l->shared, l->pdl, l->cooperative);
  for (int i = 0; i < parameters; i++) {
    /* Of a tensor map, the one parameter of 128 bytes, kernels read the first half. */
    const int read = sizes[i] == 128 ? 64 : sizes[i];
    printf("param %d ", i);
    for (int j = 0; j < read; j++) {
      if (padding[i][j]) printf("..");
      else printf("%02x", l->bytes[i][j]);
    }
    printf("\n");
  }
}

static int read_shape(Shape *shape) {
  return scanf("%d %d %d %d", &shape->m, &shape->n, &shape->k, &shape->clusters) == 4;
}

int main(void) {
  int error = 0;
  int32_t device = 0;
  void **handle = &library;
  int *status = &error;
  struct { void ***library; int **status; } init = {&handle, &status};
  INIT((void **)&init);
  struct { void ***library; int32_t *device; int **status; } load = {&handle, &device, &status};
  LOAD((void **)&load);
  if (error != 0) { fprintf(stderr, "loading: %d\n", error); return 5; }
  static Shape shapes[MOST_SHAPES];
  int count = 0;
  while (count < MOST_SHAPES && read_shape(&shapes[count])) count++;
  Shape more;
  if (count == MOST_SHAPES && read_shape(&more)) { fprintf(stderr, "more than %d shapes\n", MOST_SHAPES); return 6; }
  for (int i = 0; i < count; i++) find_padding(&shapes[i]);
  for (int i = 0; i < count; i++) print_launch(&shapes[i]);
  return 0;
}
