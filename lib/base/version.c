/* SPDX-License-Identifier: Apache-2.0 */
#include "wsync/version.h"

#include <features.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

#if defined(__clang__)
#define COMPILER                                                                                   \
	"clang " TEXT(__clang_major__) "." TEXT(__clang_minor__) "." TEXT(__clang_patchlevel__)
#define HAS(x) __has_feature(x)
#elif defined(__GNUC__)
#define COMPILER "gcc " TEXT(__GNUC__) "." TEXT(__GNUC_MINOR__) "." TEXT(__GNUC_PATCHLEVEL__)
#define HAS(x) 0
#else
#define COMPILER "unknown compiler"
#define HAS(x) 0
#endif

#ifdef __GLIBC__
#define LIBC ", glibc " TEXT(__GLIBC__) "." TEXT(__GLIBC_MINOR__)
#else
#define LIBC ""
#endif

#if defined(__x86_64__)
#define MACHINE ", x86-64"
#elif defined(__aarch64__)
#define MACHINE ", aarch64"
#else
#define MACHINE ""
#endif

#ifdef __OPTIMIZE__
#define OPTIMIZED ", optimized"
#else
#define OPTIMIZED ", not optimized"
#endif

#if defined(__SANITIZE_ADDRESS__) || HAS(address_sanitizer)
#define SANITIZED ", address sanitizer"
#elif defined(__SANITIZE_THREAD__) || HAS(thread_sanitizer)
#define SANITIZED ", thread sanitizer"
#else
#define SANITIZED ""
#endif

#ifdef NDEBUG
#define ASSERTS ", no assertions"
#else
#define ASSERTS ""
#endif

const char *ws_version(void)
{
	return WSYNC_VERSION;
}

const char *ws_build(void)
{
	return COMPILER LIBC MACHINE OPTIMIZED SANITIZED ASSERTS;
}
