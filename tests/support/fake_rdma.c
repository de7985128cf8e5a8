/* Plays libibverbs.so.1, libmlx5.so.1 and libcuda.so.1 for the collectors active_verbs and verbs_query: one library under three
 * names.
 *
 * FAKE_DEVICES       names, separated by commas; devices whose name begins with mlx5 are mlx5 devices
 * FAKE_LIST          errno of ibv_get_device_list
 * FAKE_<CALL>[_name] errno of a call (of one device): OPEN, PD, FD (descriptor -1; 9 unless set), GPU, DEVX, UAR, UAR_NC;
 *                    0 works, -1 fails without errno, -2 crashes; QUERY, PORT: returned errno
 * FAKE_<VALUE>[_name] what a query tells: ATOMIC (1), QPS (131072), READS (16), PORTS (1), MTU (5), MAX_MTU (5)
 * FAKE_CUDA_<CALL>   code of a CUDA call: INIT, COUNT (value), DMABUF (value), RETAIN, ALLOC, EXPORT
 * FAKE_TOUCHED       file that is made when CUDA is used
 * With -DOLD the newer calls are missing.
 *
 * Arguments that the real libraries would refuse give EINVAL. At exit, what was not given back is told on stderr.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ADDRESS 0x7f0000200000ULL
#define NUM_BYTES (2u << 20)

struct device {
    char name[32];
    bool devx;
};

static struct device devices[16];
static int held;

static int number(const char *key, const char *name, int otherwise) {
    char full[96];
    snprintf(full, sizeof full, "FAKE_%s_%s", key, name);
    const char *found = getenv(full);
    if (!found) {
        snprintf(full, sizeof full, "FAKE_%s", key);
        found = getenv(full);
    }
    return found ? atoi(found) : otherwise;
}

/* `handle`, or NULL with the errno that the test wants. */
static void *answer(const char *key, struct device *device, int otherwise, void *handle) {
    int wanted = number(key, device->name, otherwise);
    if (wanted == -2) raise(SIGSEGV);
    if (wanted == 0) {
        held++;
        return handle;
    }
    if (wanted > 0) errno = wanted;
    return NULL;
}

__attribute__((destructor)) static void tell(void) {
    if (held) fprintf(stderr, "%d handles were not given back\n", held);
}

void **ibv_get_device_list(int *count) {
    *count = 0;
    if ((errno = number("LIST", "", 0)) != 0) return NULL;
    void **list = calloc(17, sizeof *list);
    char names[256] = "";
    if (getenv("FAKE_DEVICES")) strncpy(names, getenv("FAKE_DEVICES"), sizeof names - 1);
    for (char *name = strtok(names, ","); name && *count < 16; name = strtok(NULL, ",")) {
        strncpy(devices[*count].name, name, sizeof devices[0].name - 1);
        list[*count] = &devices[*count];
        (*count)++;
    }
    held++;
    return list;
}

void ibv_free_device_list(void **list) {
    held--;
    free(list);
}

const char *ibv_get_device_name(struct device *device) { return device->name; }

void *ibv_open_device(struct device *device) { return answer("OPEN", device, 0, device); }

int ibv_close_device(struct device *context) {
    context->devx = false;
    held--;
    return 0;
}

/* Both structures as in verbs.h of rdma-core; unused fields hold a pattern, so that a wrong offset gives a wrong number. */
struct device_attr {
    char fw_ver[64];
    uint64_t node_guid, sys_image_guid, max_mr_size, page_size_cap;
    uint32_t vendor_id, vendor_part_id, hw_ver;
    int max_qp, max_qp_wr;
    unsigned int device_cap_flags;
    int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd;
    int max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom;
    int atomic_cap;
    int max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp;
    int max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach;
    int max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge;
    uint16_t max_pkeys;
    uint8_t local_ca_ack_delay, phys_port_cnt;
};

struct port_attr {
    int state, max_mtu, active_mtu, gid_tbl_len;
    uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
    uint16_t pkey_tbl_len, lid, sm_lid;
    uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer, flags;
};

int ibv_query_device(struct device *context, struct device_attr *attr) {
    int refused = number("QUERY", context->name, 0);
    if (refused == -2) raise(SIGSEGV);
    memset(attr, 0x5a, sizeof *attr);
    attr->max_qp = number("QPS", context->name, 131072);
    attr->max_qp_rd_atom = number("READS", context->name, 16);
    attr->atomic_cap = number("ATOMIC", context->name, 1);
    attr->phys_port_cnt = number("PORTS", context->name, 1);
    return refused;
}

int ibv_query_port(struct device *context, uint8_t port, struct port_attr *attr) {
    if (port == 0 || port > number("PORTS", context->name, 1)) return EINVAL;
    memset(attr, 0x5a, sizeof *attr);
    attr->max_mtu = number("MAX_MTU", context->name, 5);
    attr->active_mtu = number("MTU", context->name, 5);
    return number("PORT", context->name, 0);
}

void *ibv_alloc_pd(struct device *context) { return answer("PD", context, 0, context); }

int ibv_dealloc_pd(struct device *domain) {
    (void)domain;
    held--;
    return 0;
}

#ifndef OLD
void *ibv_reg_dmabuf_mr(struct device *domain, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
    if (fd == -1) return answer("FD", domain, EBADF, domain);
    if (offset || length != NUM_BYTES || iova != ADDRESS || access != 7 || fcntl(fd, F_GETFD) < 0) {
        errno = EINVAL;
        return NULL;
    }
    return answer("GPU", domain, 0, domain);
}
#endif

int ibv_dereg_mr(void *region) {
    (void)region;
    held--;
    return 0;
}

#ifndef OLD
struct context_attr {
    uint32_t flags;
    uint64_t comp_mask;
};

bool mlx5dv_is_supported(struct device *device) { return strncmp(device->name, "mlx5", 4) == 0; }

void *mlx5dv_open_device(struct device *device, struct context_attr *attr) {
    if (attr->flags != 1 || attr->comp_mask) {
        errno = EINVAL;
        return NULL;
    }
    device->devx = true;
    return answer("DEVX", device, 0, device);
}

void *mlx5dv_devx_alloc_uar(struct device *context, uint32_t flags) {
    if (!context->devx || (flags != 0 && flags != 1u << 31)) {
        errno = EINVAL;
        return NULL;
    }
    int first = number("UAR", context->name, 0);
    return flags ? answer("UAR_NC", context, first, context) : answer("UAR", context, 0, context);
}

void mlx5dv_devx_free_uar(void *uar) {
    (void)uar;
    held--;
}
#endif

static int code(const char *key) { return number(key, "", 0); }

int cuInit(unsigned flags) {
    const char *path = getenv("FAKE_TOUCHED");
    if (path) close(open(path, O_CREAT | O_WRONLY, 0600));
    return flags ? 1 : code("CUDA_INIT");
}

int cuDeviceGetCount(int *count) {
    *count = number("CUDA_COUNT", "", 1);
    return 0;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal ? 101 : 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    int wanted = number("CUDA_DMABUF", "", 1);
    *value = wanted;
    if (attribute != 124 || device) return 1;
    return wanted < 0 ? -wanted : 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    *context = &held;
    if (code("CUDA_RETAIN")) return code("CUDA_RETAIN");
    held++;
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    held--;
    return 0;
}

int cuCtxSetCurrent(void *context) { return context == &held ? 0 : 201; }

int cuMemAlloc_v2(uint64_t *address, size_t num_bytes) {
    if (code("CUDA_ALLOC") || num_bytes != NUM_BYTES) return code("CUDA_ALLOC") ? code("CUDA_ALLOC") : 1;
    *address = ADDRESS;
    held++;
    return 0;
}

int cuMemFree_v2(uint64_t address) {
    held -= address == ADDRESS;
    return 0;
}

int cuMemGetHandleForAddressRange(void *handle, uint64_t address, size_t num_bytes, int type, unsigned long long flags) {
    if (address != ADDRESS || num_bytes != NUM_BYTES || type != 1 || flags) return 1;
    if (code("CUDA_EXPORT")) return code("CUDA_EXPORT");
    *(int *)handle = open("/dev/null", O_RDWR);
    return 0;
}
