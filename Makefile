# SPDX-License-Identifier: Apache-2.0
# wsync. One file, no recursion but for the sanitizer and second-compiler builds.
# `make help` lists the targets.

VERSION   := $(shell awk -F '"' '/define WSYNC_VERSION "/ { print $$2 }' include/wsync/version.h)

# Of this tree, for --version: unless it is a checkout of its own, nothing, or what is given.
WSYNC_COMMIT ?= $(shell git ls-files --error-unmatch Makefile >/dev/null 2>&1 && \
	GIT_OPTIONAL_LOCKS=0 git describe --always --dirty --abbrev=12 --exclude '*')

# ---- knobs -----------------------------------------------------------------------------------
PREFIX     ?= /usr/local
DESTDIR    ?=
bindir     ?= $(PREFIX)/bin
libdir     ?= $(PREFIX)/lib
includedir ?= $(PREFIX)/include
datadir    ?= $(PREFIX)/share
mandir     ?= $(datadir)/man
CC         ?= cc
AR         ?= ar
NM         ?= nm
OBJCOPY    ?= objcopy
CFLAGS     ?= -O2 -g
BUILD      ?= build
SANITIZE   ?=
PKG_CONFIG ?= pkg-config
CUDA       ?= auto
CUDA_HOME  ?=
CUDA_ARCHS ?=
V          ?=

ifneq ($(words $(BUILD)),1)
$(error BUILD is '$(BUILD)': it must be one directory, without blanks in its name)
endif

# ---- what is there ---------------------------------------------------------------------------
program = $(shell command -v $(firstword $(1)) 2>/dev/null)
package = $(shell $(PKG_CONFIG) --exists $(1) 2>/dev/null && echo y)
MISSING := $(foreach p,$(firstword $(CC)) $(firstword $(PKG_CONFIG)), \
	$(if $(call program,$(p)),,$(p)))
MISSING += $(foreach p,libcurl libcjson libxxhash libcrypto,$(if $(call package,$(p)),,$(p)))
MISSING := $(strip $(MISSING))
HAVE_MHD := $(call package,libmicrohttpd)
HAVE_SCDOC := $(call program,scdoc)

# GPU support needs the compiler and cuda.h of the CUDA Toolkit, but no driver and no GPU. CUDA=0:
# build without; CUDA=1: or fail. CUDA_HOME: a toolkit that is not on the path.
ifneq ($(CUDA),0)
NVCC := $(firstword $(if $(CUDA_HOME),$(wildcard $(CUDA_HOME)/bin/nvcc), \
	$(call program,nvcc) $(wildcard /usr/local/cuda/bin/nvcc)))
CUDA_INC := $(if $(NVCC),$(firstword $(patsubst %/cuda.h,%,$(wildcard $(addsuffix /cuda.h, \
	$(abspath $(addprefix $(dir $(realpath $(NVCC)))../,include \
		targets/$(shell uname -m)-linux/include)) \
	/usr/include)))))
endif
HAVE_CUDA := $(and $(NVCC),$(CUDA_INC),y)
ifeq ($(CUDA)$(HAVE_CUDA),1)
$(error CUDA=1: nvcc and cuda.h are not found; CUDA_HOME=DIR says where they are)
endif
# From Ampere on, where bfloat16 begins; 89 and later round to FP8 in hardware. GPUs of other kinds,
# newer ones too, compile the PTX of 90 when the kernels are loaded; older ones run what is made for
# 80.
ifeq ($(HAVE_CUDA)$(CUDA_ARCHS),y)
CUDA_ARCHS := $(patsubst sm_%,%,$(filter sm_80 sm_89 sm_90 sm_100 sm_120, \
	$(shell $(NVCC) --list-gpu-code)))
endif
CUDA_PTX = $(or $(filter 90,$(CUDA_ARCHS)),$(lastword $(CUDA_ARCHS)))

# ---- flags -----------------------------------------------------------------------------------
WARN = -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla \
       -Wwrite-strings -Wundef
BASEFLAGS = -std=c11 $(WARN) -fvisibility=hidden -fPIC -pthread -D_GNU_SOURCE \
            -D_FILE_OFFSET_BITS=64 -ffp-contract=off -Iinclude
# A program is linked without the functions that it does not reach: wsync-register is a quarter.
BASEFLAGS += -ffunction-sections -fdata-sections
LINK = $(CC) $(CFLAGS) $(LDFLAGS) -Wl,--gc-sections
ifneq ($(SANITIZE),)
BASEFLAGS += -fsanitize=$(SANITIZE) -fno-omit-frame-pointer -fno-sanitize-recover=undefined
LDFLAGS += -fsanitize=$(SANITIZE)
endif
DEP_CFLAGS := $(shell $(PKG_CONFIG) --cflags libcurl libcjson libxxhash libcrypto 2>/dev/null)
# xxHash is inlined into hash.c and not linked.
LIBS       := $(shell $(PKG_CONFIG) --libs libcurl libcjson libcrypto 2>/dev/null) -lm -ldl -pthread
MHD_LIBS   := $(shell $(PKG_CONFIG) --libs libmicrohttpd 2>/dev/null)

# The dependency rule of the house, enforced by what each layer can find:
# cmd -> include/wsync; cmd/gateway also httpd. In lib each folder sees those above it in this
# list, as far as its line says:
#   base; names, model, check and transform (not each other); net, gpu (nothing of models)
# proof (names, model and transform); client, staging; group; state, diagnose (not each other);
# verify (state, but not what state sees; neither group nor push); push; fleet; bench. endpoint is
# the other end: it sees none from client on, but proof for the functions of checksums, because each
# end reads the servers' protocol for itself. httpd, the HTTP server of endpoint and
# cmd/gateway, sees base and the sockets of net. A folder with folders inside is one layer.
dirs = $(foreach d,$(1),$(addprefix -I,$(patsubst %/,%,$(wildcard lib/$(d)/ lib/$(d)/*/))))
INC_base  = -Ilib/base
INC_names = $(call dirs,base names)
INC_model = $(INC_names) $(call dirs,model)
INC_check = $(INC_model) -Ilib/check
INC_transform = $(INC_model) $(call dirs,transform)
INC_net   = -Ilib/base $(call dirs,net)
INC_gpu   = -Ilib/base -Ilib/gpu $(if $(HAVE_CUDA),-isystem $(CUDA_INC))
INC_client = $(INC_check) $(call dirs,net client)
INC_staging = $(INC_transform) -Ilib/gpu -Ilib/staging
INC_group = $(INC_client) $(call dirs,transform gpu staging group)
INC_state = $(INC_group) -Ilib/state
INC_diagnose = $(INC_group) -Ilib/diagnose
INC_proof = $(INC_model) $(call dirs,transform) -Ilib/proof
INC_verify = $(INC_client) $(call dirs,transform state verify) -Ilib/proof
INC_push  = $(INC_group) $(call dirs,state diagnose proof verify push)
INC_httpd = -Ilib/base -Ilib/net -Ilib/httpd
INC_endpoint = $(INC_check) $(call dirs,transform net gpu endpoint) -Ilib/httpd -Ilib/proof
INC_fleet = $(INC_push) -Ilib/fleet
INC_bench = $(INC_push) -Ilib/bench
INC_cmd   = -Icmd/common
INC_gateway = -Ilib/httpd
INC_tests = $(INC_bench) -Ilib/fleet $(call dirs,httpd endpoint) -Itests -Itests/unit

# ---- lists -----------------------------------------------------------------------------------
# The embedded endpoint and the HTTP server have archives of their own, which are not installed.
ENDPOINT_SRCS := $(wildcard lib/endpoint/*.c lib/endpoint/*/*.c)
HTTPD_SRCS := $(wildcard lib/httpd/*.c)
LIB_SRCS := $(filter-out $(ENDPOINT_SRCS) $(HTTPD_SRCS),$(wildcard lib/*/*.c lib/*/*/*.c))
CMD_SRCS := $(wildcard cmd/wsync-*.c)
COMMON_SRCS := $(wildcard cmd/common/*.c)
UNIT_SRCS := $(wildcard tests/unit/test_*.c)
GPU_SRCS := $(wildcard tests/gpu/test_*.c)
SHIM_SRCS := $(addprefix tests/tools/,hang_io.c lose_names.c)
TOOL_SRCS := $(filter-out $(SHIM_SRCS),$(wildcard tests/tools/*.c))
FUZZ_SRCS := $(wildcard tests/fuzz/fuzz_*.c)
MAN_SRCS := $(wildcard man/*.scd)
HEADERS := $(wildcard include/wsync/*.h)
EVERYTHING := $(CMD_SRCS) $(MAN_SRCS)
ifneq ($(HAVE_MHD),y)
CMD_SRCS := $(filter-out cmd/wsync-endpoint.c cmd/wsync-gateway.c,$(CMD_SRCS))
UNIT_SRCS := $(filter-out tests/unit/test_serve%.c tests/unit/test_pickle.c,$(UNIT_SRCS))
GPU_SRCS := $(filter-out tests/gpu/test_outlet.c tests/gpu/test_serve%.c,$(GPU_SRCS))
TOOL_SRCS := $(filter-out tests/tools/pickletool.c,$(TOOL_SRCS))
FUZZ_SRCS := $(filter-out $(patsubst %,tests/fuzz/fuzz_%.c,generate pickle request),$(FUZZ_SRCS))
MAN_SRCS := $(filter-out man/wsync-endpoint.% man/wsync-gateway.%,$(MAN_SRCS))
endif

ifeq ($(HAVE_CUDA),y)
LIB_SRCS := $(filter-out lib/gpu/no_cuda.c,$(LIB_SRCS))
else
LIB_SRCS := $(filter-out lib/gpu/cuda%.c lib/gpu/images.c,$(LIB_SRCS))
endif

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
FAMILIES := $(sort $(wildcard lib/names/families/*.map))
LIB = $(BUILD)/libwsync.a
ENDPOINT_LIB = $(if $(filter y,$(HAVE_MHD)),$(BUILD)/libwsync-endpoint.a)
HTTPD_LIB = $(if $(filter y,$(HAVE_MHD)),$(BUILD)/libwsync-httpd.a)
ARCHIVES = $(ENDPOINT_LIB) $(HTTPD_LIB) $(LIB)
BINS := $(patsubst cmd/%.c,$(BUILD)/bin/%,$(CMD_SRCS))
UNITS := $(patsubst tests/unit/%.c,$(BUILD)/tests/unit/%,$(UNIT_SRCS))
TOOLS := $(patsubst tests/tools/%.c,$(BUILD)/tests/tools/%,$(TOOL_SRCS)) \
	$(patsubst %.c,$(BUILD)/%.so,$(SHIM_SRCS))
KERNELS := $(wildcard lib/gpu/kernels/*.cu)
FATBINS := $(patsubst lib/gpu/kernels/%.cu,$(BUILD)/gen/lib/gpu/%.fatbin,$(KERNELS))
GPU_TESTS := $(patsubst tests/gpu/%.c,$(BUILD)/tests/gpu/%,$(GPU_SRCS))
FAKES := $(BUILD)/tests/gpu/fake_nccl.so \
	$(if $(HAVE_CUDA),$(BUILD)/tests/gpu/fake_cuda.so $(BUILD)/tests/gpu/fake_cuda_old.so)
REPLAYS := $(patsubst tests/fuzz/%.c,$(BUILD)/tests/fuzz/%,$(FUZZ_SRCS))
MANS := $(patsubst man/%.scd,$(BUILD)/man/%,$(MAN_SRCS))

comma = ,
Q = $(if $(V),,@)
say = @printf '  %-5s %s\n' $(1) $(2)

.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: all always lib programs left-out tests-build help deps check check-asan check-clang \
        check-gpu check-run gpu-programs gpu-kit demo bench soak honest fuzz man lint format \
        install uninstall clean bless

all: programs $(if $(HAVE_SCDOC),man) left-out ## build the library, the programs and the man pages

ifneq ($(MISSING),)
SELF_SUFFICIENT := help deps check check-asan check-clang check-gpu gpu-kit demo bench soak honest \
	lint format uninstall clean wheel bundle deb check-packages
ifneq ($(filter-out $(SELF_SUFFICIENT),$(or $(MAKECMDGOALS),all)),)
$(shell tests/setup.sh -n build)
$(error missing: $(MISSING))
endif
endif

lib: $(ARCHIVES)
programs: $(LIB) $(BINS)

left-out: programs
	@$(if $(HAVE_MHD),,echo 'not built: wsync-endpoint and wsync-gateway, which need' \
		libmicrohttpd \
		'(install the package libmicrohttpd-dev, or make deps)' >&2)
	@$(if $(HAVE_SCDOC),,echo 'not built: the man pages, which need scdoc' \
		'(install the package scdoc, or make deps)' >&2)

# ---- rules -----------------------------------------------------------------------------------
$(BUILD)/obj/lib/base/%.o: LAYER = $(INC_base)
$(BUILD)/obj/lib/names/%.o: LAYER = $(INC_names)
$(BUILD)/obj/lib/model/%.o: LAYER = $(INC_model)
$(BUILD)/obj/lib/check/%.o: LAYER = $(INC_check)
$(BUILD)/obj/lib/transform/%.o: LAYER = $(INC_transform)
$(BUILD)/obj/lib/net/%.o: LAYER = $(INC_net)
$(BUILD)/obj/lib/gpu/%.o: LAYER = $(INC_gpu)
$(BUILD)/obj/lib/client/%.o: LAYER = $(INC_client)
$(BUILD)/obj/lib/staging/%.o: LAYER = $(INC_staging)
$(BUILD)/obj/lib/group/%.o: LAYER = $(INC_group)
$(BUILD)/obj/lib/state/%.o: LAYER = $(INC_state)
$(BUILD)/obj/lib/diagnose/%.o: LAYER = $(INC_diagnose)
$(BUILD)/obj/lib/proof/%.o: LAYER = $(INC_proof)
$(BUILD)/obj/lib/verify/%.o: LAYER = $(INC_verify)
$(BUILD)/obj/lib/push/%.o: LAYER = $(INC_push)
$(BUILD)/obj/lib/fleet/%.o: LAYER = $(INC_fleet)
$(BUILD)/obj/lib/httpd/%.o: LAYER = $(INC_httpd)
$(BUILD)/obj/lib/endpoint/%.o: LAYER = $(INC_endpoint)
$(BUILD)/obj/lib/bench/%.o: LAYER = $(INC_bench)
$(BUILD)/obj/cmd/%.o: LAYER = $(INC_cmd)
$(BUILD)/obj/cmd/gateway/%.o: LAYER = $(INC_gateway)
$(BUILD)/obj/tests/%.o: LAYER = $(INC_tests)

# An archive of what a linker has yet to compile is bound to one release of one compiler, and
# objcopy cannot name anything in it anew (see install).
$(BUILD)/obj/lib/%.o: NO_LTO = $(if $(findstring -flto,$(CFLAGS)),-fno-lto)

define compile
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(BASEFLAGS) $(LAYER) $(ISA) $(DEP_CFLAGS) $(CPPFLAGS) $(CFLAGS) $(NO_LTO) \
		-MMD -MP -c -o $@ $<
endef
# Kernels for one instruction set each, chosen at run time; elsewhere these files are empty.
ISA =
ifeq ($(shell uname -m),x86_64)
$(BUILD)/obj/%_avx2.o: ISA = -mavx2 -mfma -mf16c
endif

$(BUILD)/obj/%.o: %.c
	$(compile)
$(BUILD)/obj/%.o: $(BUILD)/gen/%.c
	$(compile)

# What was chosen last time: what depends on it is made anew when that changes, as with CUDA=0 after
# a build.
CHOSEN_sources = $(LIB_SRCS) $(ENDPOINT_SRCS) $(HTTPD_SRCS)
CHOSEN_archs = $(CUDA_ARCHS)
CHOSEN_commit := $(WSYNC_COMMIT)
$(BUILD)/chosen-%: always
	@mkdir -p $(@D)
	@echo '$(CHOSEN_$*)' | cmp -s - $@ || echo '$(CHOSEN_$*)' >$@
always:

# In the programs and not in the library: after a commit little is linked again.
$(BUILD)/obj/cmd/common/opt_help.o: LAYER = $(INC_cmd) -DWSYNC_COMMIT='"$(CHOSEN_commit)"'
$(BUILD)/obj/cmd/common/opt_help.o: $(BUILD)/chosen-commit

NVCCFLAGS = -std=c++17 -fmad=false
# Since CUDA 12.8.
NVCC_SMALL := $(if $(HAVE_CUDA),$(if $(findstring --compress-mode,$(shell $(NVCC) --help)), \
	--compress-mode=size))

# One fat binary for each file of kernels, taken into images.o by the assembler. Contraction is off
# here too.
$(BUILD)/gen/lib/gpu/%.fatbin: lib/gpu/kernels/%.cu $(BUILD)/chosen-archs
	@mkdir -p $(@D)
	$(call say,NVCC,$@)
	$(Q)$(NVCC) --fatbin $(NVCCFLAGS) -Xfatbin=-compress-all $(NVCC_SMALL) \
		$(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
		-gencode arch=compute_$(CUDA_PTX),code=compute_$(CUDA_PTX) \
		-MMD -MP -MF $@.d -o $@ $<

$(BUILD)/obj/lib/gpu/images.o: LAYER = $(INC_gpu) -DWSYNC_IMAGES='"$(BUILD)/gen/lib/gpu"'
$(BUILD)/obj/lib/gpu/images.o: $(FATBINS)
$(BUILD)/obj/lib/gpu/cuda_version.o: LAYER = $(INC_gpu) \
	-DWSYNC_ARCHS='"$(addprefix sm_,$(CUDA_ARCHS))"'
$(BUILD)/obj/lib/gpu/cuda_version.o: $(BUILD)/chosen-archs

# A double of the driver that runs the kernels on the CPU, one that lacks all that is about kernels,
# and a double of NCCL.
INC_fake = -Itests -Ilib/gpu/kernels -isystem $(CUDA_INC)
FAKE_CUDA_SRCS := $(filter-out %_nccl.c,$(wildcard tests/gpu/fake_*.c tests/gpu/host_*.c))
PTX_SRCS := $(wildcard tests/gpu/ptx_*.c)
$(patsubst %.c,$(BUILD)/obj/%.o,$(FAKE_CUDA_SRCS)): LAYER = $(INC_fake)
$(BUILD)/obj/tests/gpu/kernels/%.o: lib/gpu/kernels/%.cu
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(BASEFLAGS) $(INC_fake) -Wno-missing-prototypes $(CPPFLAGS) $(CFLAGS) -MMD -MP \
		-include tests/gpu/host_shim.h -x c -c -o $@ $<

$(BUILD)/tests/gpu/fake_cuda.so: $(call obj,$(FAKE_CUDA_SRCS) $(PTX_SRCS)) \
		$(patsubst lib/gpu/kernels/%.cu,$(BUILD)/obj/tests/gpu/kernels/%.o,$(KERNELS))
$(BUILD)/tests/gpu/fake_nccl.so: $(call obj,tests/gpu/fake_nccl.c tests/gpu/fake_wire_nccl.c)
$(BUILD)/tests/gpu/fake_cuda_old.so: \
		$(call obj,$(addprefix tests/gpu/,fake_cuda.c fake_ipc.c fake_stream.c))
$(BUILD)/tests/gpu/%.so:
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -o $@ $^ -lm -ldl -pthread

# The kernels' PTX, for tests: as it becomes code for GPUs that lack FP8, for those that have it,
# and for 100, of which nvcc has another compiler. And with contraction allowed, as where a driver
# compiles it: the same.
ifeq ($(HAVE_CUDA),y)
PTX_ARCHS := $(sort $(filter 80 90 100,$(CUDA_ARCHS)) $(CUDA_PTX))
PTX := $(foreach a,$(PTX_ARCHS) contracted, \
	$(KERNELS:lib/gpu/kernels/%.cu=$(BUILD)/gen/ptx/$(a)/%.ptx))
endif
define make_ptx
$(BUILD)/gen/ptx/$(1)/%.ptx: lib/gpu/kernels/%.cu $(BUILD)/chosen-archs
	@mkdir -p $$(@D)
	$$(call say,NVCC,$$@)
	$$(Q)$$(NVCC) -ptx $(2) -MMD -MP -MF $$@.d -o $$@ $$<
endef
$(foreach a,$(PTX_ARCHS),$(eval $(call make_ptx,$(a),$(NVCCFLAGS) -arch=compute_$(a))))
$(eval $(call make_ptx,contracted,$(NVCCFLAGS:%false=%true) -arch=compute_$(CUDA_PTX)))

# The built-in maps as one array of strings, in the order of their names. The directory is named
# too, so that a map which is taken away is noticed. "\?" because two of them could begin a
# trigraph.
$(BUILD)/gen/lib/names/builtin_maps.c: $(FAMILIES) lib/names/families
	@mkdir -p $(@D)
	$(call say,GEN,$@)
	$(Q)awk 'BEGIN { print "#include \"rules.h\""; \
			print "const struct ws_builtin_map ws_builtin_maps[] = {" } \
		FNR == 1 { n = split(FILENAME, path, "/"); \
			printf "%s{ \"%s\",\n", more, path[n]; more = "},\n" } \
		{ gsub(/\\/, "&&"); gsub(/["?]/, "\\\\&"); printf "\"%s\\n\"\n", $$0 } \
		END { print more "{ 0, 0 } };" }' $(FAMILIES) >$@

$(LIB): $(call obj,$(LIB_SRCS) lib/names/builtin_maps.c)
$(BUILD)/libwsync-endpoint.a: $(call obj,$(ENDPOINT_SRCS))
$(BUILD)/libwsync-httpd.a: $(call obj,$(HTTPD_SRCS))
$(ARCHIVES): $(BUILD)/chosen-sources
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $(filter %.o,$^)

# What a target links: its objects, and its archives in the order in which a linker needs them.
linked = $(filter %.o,$^) $(filter $^,$(ARCHIVES))

$(BUILD)/bin/wsync-endpoint $(BUILD)/bin/wsync-gateway: LIBS += $(MHD_LIBS)
$(BUILD)/bin/wsync-endpoint $(BUILD)/bin/wsync-gateway: $(HTTPD_LIB)
$(BUILD)/bin/wsync-endpoint $(BUILD)/tests/gpu/test_outlet: $(ENDPOINT_LIB)
$(BUILD)/tests/gpu/test_serve_vllm_nccl: LIBS += $(MHD_LIBS)
$(BUILD)/tests/gpu/test_serve_vllm_nccl: $(ENDPOINT_LIB) $(HTTPD_LIB)
# A program of several files has the others in a directory of its name: cmd/verify/ is
# wsync-verify's.
.SECONDEXPANSION:
$(BUILD)/bin/wsync-%: $(BUILD)/obj/cmd/wsync-%.o $$(call obj,$$(sort $$(wildcard cmd/$$*/*.c))) \
		$(call obj,$(COMMON_SRCS)) $(LIB)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(LINK) -o $@ $(linked) $(LIBS)

$(BUILD)/tests/unit/%: $(BUILD)/obj/tests/unit/%.o $(ARCHIVES)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(LINK) -o $@ $(linked) -lcmocka $(LIBS) $(MHD_LIBS)

$(BUILD)/tests/gpu/test_ptx: $(call obj,$(PTX_SRCS))
$(BUILD)/tests/gpu/%: $(BUILD)/obj/tests/gpu/%.o $(BUILD)/obj/tests/gpu/on_gpu.o $(LIB) | $(FAKES)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(LINK) -o $@ $(linked) -lcmocka $(LIBS)

# For LD_PRELOAD: no sanitizer is linked into it.
$(BUILD)/tests/tools/%.so: tests/tools/%.c
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) -std=c11 -O1 -Wall -Wextra -fPIC -shared -o $@ $< -ldl -pthread

# Some of these run inside another root, which has neither libcurl nor libasan. gcc drops libraries
# that are not used by itself on some systems, clang does not; clang links its sanitizers statically
# by itself.
$(BUILD)/tests/tools/%: LDFLAGS += -Wl,--as-needed \
	$(if $(findstring address,$(SANITIZE)), \
	$(if $(findstring clang,$(CC)),,-static-libasan -static-libubsan))
$(BUILD)/tests/tools/pickletool: $(ENDPOINT_LIB)
$(BUILD)/tests/tools/%: $(BUILD)/obj/tests/tools/%.o $(LIB)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(LINK) -o $@ $(linked) $(LIBS)

# A fuzz target without libFuzzer: replay.c feeds it the files named on the command line.
$(BUILD)/tests/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(BUILD)/obj/tests/fuzz/replay.o $(ARCHIVES)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(LINK) -o $@ $(linked) $(LIBS) $(MHD_LIBS)

$(BUILD)/man/%: man/%.scd
	@mkdir -p $(@D)
	$(call say,MAN,$@)
	$(Q)$(if $(HAVE_SCDOC),scdoc < $< > $@, \
		echo 'missing: scdoc (install the package scdoc, or make deps)' >&2; exit 1)

man: $(MANS) ## build the man pages (needs scdoc)

-include $(shell find $(BUILD)/obj $(BUILD)/gen -name '*.d' 2>/dev/null)
.SECONDARY:

# ---- set-up, tests, demo ---------------------------------------------------------------------
deps: ## install what the build and the tests need (root or sudo; else print the command)
	@tests/setup.sh

tests-build: programs $(UNITS) $(GPU_TESTS) $(FAKES) $(PTX) $(TOOLS) $(REPLAYS) \
		$(if $(HAVE_SCDOC),man)

check: ## set up the machine, build, and run every test that needs no GPU
	@tests/setup.sh
	@$(MAKE) --no-print-directory check-run

check-run: tests-build
	$(Q)BUILD=$(BUILD) tests/run $(TESTS)

soak: ## SOAK_POINTS (1000) faults drawn by chance, in about six minutes; SOAK_SEED repeats a run
	@tests/setup.sh
	@$(MAKE) --no-print-directory programs
	@BUILD=$(BUILD) PYTHONDONTWRITEBYTECODE=1 tests/soak.sh

honest: ## HONEST_PUSHES (300) right pushes, in a few minutes; HONEST_SEED repeats a run
	@tests/setup.sh
	@$(MAKE) --no-print-directory programs
	@BUILD=$(BUILD) PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -u tests/tools/honest.py

check-asan: ## the whole suite under AddressSanitizer and UndefinedBehaviorSanitizer
	@tests/setup.sh
	@$(MAKE) --no-print-directory check-run BUILD=build/asan SANITIZE=address,undefined \
		CFLAGS="-O1 -g"

check-clang: ## the whole suite built with clang
	@tests/setup.sh
	@$(MAKE) --no-print-directory check-run BUILD=build/clang CC=clang

gpu-programs: $(GPU_TESTS) $(FAKES)

check-gpu: ## test kernels, NCCL and speed on a GPU (without one each test is skipped)
	@tests/setup.sh gpu
	@$(MAKE) --no-print-directory programs gpu-programs
	@BUILD=$(BUILD) tests/gpu/check.py

gpu-kit: ## build/gpu-kit: check-gpu for a machine that has a GPU, Python and nothing else
	@tests/setup.sh gpu
	@$(MAKE) --no-print-directory programs gpu-programs
	+@BUILD=$(BUILD) tests/gpu/kit.sh

bless: tests-build ## rewrite the golden files of the command-line tests
	$(Q)BUILD=$(BUILD) BLESS=1 tests/run tests/cli/*.bats

demo: ## set up, build, and push a 1.2 GB checkpoint into two endpoints
	@tests/setup.sh build
	@$(MAKE) --no-print-directory programs tests-tools
	@BUILD=$(BUILD) tests/demo.sh

.PHONY: tests-tools
tests-tools: $(TOOLS)

bench: ## print speed ratios against torch and against a plain socket (about 30 minutes)
	@tests/setup.sh
	@$(MAKE) --no-print-directory tests-build
	@BUILD=$(BUILD) /usr/bin/python3 -B tests/bench/bench.py

FUZZ_SECONDS ?= 600
fuzz: ## run every fuzz target with libFuzzer for FUZZ_SECONDS each (needs clang)
	@BUILD=$(BUILD) FUZZ_SECONDS=$(FUZZ_SECONDS) tests/fuzz/run.sh

lint: ## shellcheck, codespell, man page lint, clang-tidy where present
	@tests/lint.sh

format: ## clang-format on what changed (an aid; hand-aligned tables may switch it off)
	clang-format -i $$(git diff --name-only HEAD -- '*.c' '*.h')

# ---- packages -------------------------------------------------------------------------------
CUDA_OF_NVCC = $(if $(HAVE_CUDA),$(abspath $(dir $(realpath $(NVCC)))..))
in_root = $(Q)BUILD=$(BUILD) VERSION=$(VERSION) WSYNC_COMMIT=$(CHOSEN_commit) \
	CUDA=$(CUDA) CUDA_HOME=$(CUDA_OF_NVCC) packaging/make.sh
.PHONY: wheel bundle deb check-packages
wheel: ## for pip: programs, libraries and Python module, in build/dist (needs mmdebstrap)
	$(in_root) wheel

bundle: ## one file to unpack anywhere: programs and libraries, in build/dist
	$(in_root) bundle

deb: ## packages for Debian 12 and later, in build/dist; DEBIAN=11 or 13 for others
	$(in_root) deb

check-packages: ## build the packages, and try each in roots of Debian
	@tests/setup.sh
	@$(MAKE) --no-print-directory programs
	$(in_root) roots; case $$? in 0) ;; \
		77) echo '0 passed, 0 failed, 1 skipped'; exit ;; *) exit 1 ;; esac; \
	$(MAKE) --no-print-directory wheel bundle deb && \
	BUILD=$(BUILD) WSYNC_COMMIT=$(CHOSEN_commit) tests/run tests/packages/packages.bats

# ---- installing ------------------------------------------------------------------------------
# Directories of the user may have blanks and quotes in their names, so the recipes have them in
# quotes.
quote = '$(subst ','\'',$(1))'
to_bin     = $(call quote,$(DESTDIR)$(bindir))
to_lib     = $(call quote,$(DESTDIR)$(libdir))
to_include = $(call quote,$(DESTDIR)$(includedir)/wsync)
to_man     = $(call quote,$(DESTDIR)$(mandir))
to_bash    = $(call quote,$(DESTDIR)$(datadir)/bash-completion/completions)
to_zsh     = $(call quote,$(DESTDIR)$(datadir)/zsh/site-functions)
to_fish    = $(call quote,$(DESTDIR)$(datadir)/fish/vendor_completions.d)
to_share   = $(call quote,$(DESTDIR)$(datadir)/wsync)

# An empty directory is an unset variable, and a relative one is not below DESTDIR. In a .pc file
# some characters have a meaning.
NOT_IN_PC := " $$ \ \#
ifneq ($(filter install uninstall,$(MAKECMDGOALS)),)
$(foreach d,bindir libdir includedir datadir mandir,$(if $(filter /%,$(firstword $($(d)))),,\
	$(error $(d) is '$($(d))': it must be an absolute path)))
$(foreach c,$(NOT_IN_PC),$(if $(findstring $(c),$(libdir)$(includedir)),\
	$(error libdir and includedir must be without $(c): pkg-config cannot read it)))
endif

# The library is static, so what it needs is not private. Paths below PREFIX are written with
# ${prefix}.
under_prefix = $(subst :/,/,$(subst :$(PREFIX)/,$${prefix}/,:$(1)))

# Our files call each other by short names (push_begin), which in an archive every other program
# sees: what is installed has them as ws__push_begin, so that it can meet nobody's. Debuggers go on
# showing the short ones.
$(BUILD)/install/libwsync.a: $(LIB)
	@mkdir -p $(@D)
	$(Q)$(NM) -g --defined-only $< | awk \
		'NF == 3 && $$3 !~ /^ws_/ { print $$3, "ws__" $$3 }' | sort -u >$@.names
	$(Q)$(OBJCOPY) --redefine-syms=$@.names $< $@

install: all $(BUILD)/install/libwsync.a ## install under PREFIX (/usr/local), in the root DESTDIR
	install -d $(to_bin) $(to_lib)/pkgconfig $(to_include) $(to_bash) $(to_zsh) $(to_fish) \
		$(to_share)/python
	install -m 755 $(BINS) $(to_bin)
	install -m 644 $(BUILD)/install/libwsync.a $(to_lib)
	install -m 644 $(HEADERS) $(to_include)
	printf '%s\n' $(call quote,prefix=$(PREFIX)) \
		$(call quote,libdir=$(call under_prefix,$(libdir))) \
		$(call quote,includedir=$(call under_prefix,$(includedir))) '' 'Name: wsync' \
		'Description: push model weights into running inference servers' \
		'Version: $(VERSION)' 'Requires: libcurl libcjson libcrypto' \
		'Libs: -L"$${libdir}" -lwsync -lm -ldl -pthread' 'Cflags: -I"$${includedir}"' \
		> $(to_lib)/pkgconfig/wsync.pc
	set -e; for m in $(if $(HAVE_SCDOC),$(notdir $(MANS))); do s=$${m##*.}; \
		install -d $(to_man)/man$$s; \
		install -m 644 $(BUILD)/man/$$m $(to_man)/man$$s; done
	install -m 644 completions/wsync.bash $(to_bash)/wsync
	set -e; for p in $(notdir $(BINS)); do ln -sf wsync $(to_bash)/$$p; \
		ln -sf wsync.fish $(to_fish)/$$p.fish; done
	install -m 644 completions/_wsync $(to_zsh)
	install -m 644 completions/wsync.fish $(to_fish)
	install -m 644 cmd/python/*.py $(to_share)/python
	install -m 644 lib/vllm/wsync_vllm.py $(to_share)

# By name, and directories only when they are empty, so that nothing of others is removed, wherever
# this points.
uninstall: ## remove what install put there
	for p in $(basename $(notdir $(filter %.c,$(EVERYTHING)))); do \
		rm -f $(to_bin)/$$p $(to_bash)/$$p $(to_fish)/$$p.fish; done
	rm -f $(to_lib)/libwsync.a $(to_lib)/pkgconfig/wsync.pc
	for h in $(notdir $(wildcard include/wsync/*.h)); do rm -f $(to_include)/$$h; done
	for m in $(basename $(notdir $(filter %.scd,$(EVERYTHING)))); do \
		rm -f $(to_man)/man$${m##*.}/$$m; done
	rm -f $(to_bash)/wsync $(to_zsh)/_wsync $(to_fish)/wsync.fish \
		$(addprefix $(to_share)/python/,wsync.py wsync_manifest.py wsync_tensors.py) \
		$(to_share)/python/__pycache__/wsync.*.pyc \
		$(to_share)/python/__pycache__/wsync_manifest.*.pyc \
		$(to_share)/python/__pycache__/wsync_tensors.*.pyc \
		$(to_share)/wsync_vllm.py $(to_share)/__pycache__/wsync_vllm.*.pyc
	for d in $(to_include) $(to_share)/python/__pycache__ $(to_share)/python \
			$(to_share)/__pycache__ $(to_share); do \
		[ ! -d "$$d" ] || rmdir --ignore-fail-on-non-empty "$$d"; done

clean: ## remove build/
	rm -rf build

WITH_CUDA = $(if $(HAVE_CUDA),$(NVCC) for sm $(CUDA_ARCHS),not found$(comma) built without \
	GPU support: it needs nvcc and cuda.h (CUDA_HOME=DIR says where))
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\n  %-12s %s\n' CUDA '$(WITH_CUDA)'
