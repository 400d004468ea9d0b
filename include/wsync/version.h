/* SPDX-License-Identifier: Apache-2.0 */
/* version.h - versions of the library and of its build, for --version.
 *
 * Until 1.0 there is no promise of a stable ABI: compile programs again with the headers of the
 * library that they link. */
#ifndef WSYNC_VERSION_H
#define WSYNC_VERSION_H

/* The version of these headers; the Makefile reads it too. */
#define WSYNC_VERSION "0.1.0"
#define WSYNC_VERSION_MAJOR 0
#define WSYNC_VERSION_MINOR 1
#define WSYNC_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

const char *ws_version(void);      /* "0.1.0", of the library that is linked */
const char *ws_build(void);        /* "gcc 12.2.0, glibc 2.36, x86-64, optimized" */
const char *ws_http_library(void); /* "libcurl/7.88.1 OpenSSL/3.0.15 ...", as it runs now */
const char *ws_gpu_library(void);  /* "CUDA kernels for sm_80 sm_90", or "built without CUDA" */

#ifdef __cplusplus
}
#endif
#endif
