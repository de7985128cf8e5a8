// NCCL's GIN for one type of it. NCCL chooses between all types at each call otherwise, and the registers and stacks of
// those that are not there cost as much as the one that is.
#pragma once

#ifndef EPCTL_GIN_TYPE
#error "EPCTL_GIN_TYPE is given by the variant: 2 proxy, 3 gdaki, 5 efa_gda (ncclGinType_t)"
#endif
#define NCCL_GIN_PROXY_ENABLE (EPCTL_GIN_TYPE == 2)
#define NCCL_GIN_GDAKI_ENABLE (EPCTL_GIN_TYPE == 3)
#define NCCL_GIN_GPI_ENABLE 0
#define NCCL_GIN_EFA_GDA_ENABLE (EPCTL_GIN_TYPE == 5)

#include <nccl.h>
#include <nccl_device.h>

#include "epctl/common/wait.cuh"

static_assert(NCCL_GIN_TYPE_PROXY == 2 && NCCL_GIN_TYPE_GDAKI == 3 && NCCL_GIN_TYPE_EFA_GDA == 5,
              "native/communicator.py");
static_assert(NCCL_GIN_BACKEND_MASK_ALL == 1u << EPCTL_GIN_TYPE, "one type, whose number is that of its net device");
