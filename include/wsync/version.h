/* SPDX-License-Identifier: Apache-2.0 */
/* version.h - what this library is and what it was built with, for --version. */
#ifndef WSYNC_VERSION_H
#define WSYNC_VERSION_H

#ifdef __cplusplus
extern "C" {
#endif

const char *ws_version(void);      /* "0.1.0" */
const char *ws_build(void);        /* "gcc 12.2.0, x86-64, optimized": the compiler and its flags */
const char *ws_http_library(void); /* "libcurl/7.88.1 OpenSSL/3.0.15 ...", as it runs now */
const char *ws_gpu_library(void);  /* "CUDA kernels for sm_80 sm_90", or "built without CUDA" */

#ifdef __cplusplus
}
#endif
#endif
