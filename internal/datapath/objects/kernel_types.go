// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"sync"

	"github.com/cilium/ebpf/btf"
)

// kernelTypes keeps the decoded types of the kernel, which take 60 ms to read, from one load of programs to the next.
// The garbage collector frees what is not used for a while.
var kernelTypes = sync.Pool{New: func() any { return btf.NewCache() }}

// withKernelTypes calls load with the types of the kernel (BTF), read at the first use.
func withKernelTypes(load func(*btf.Cache) error) error {
	cache := kernelTypes.Get().(*btf.Cache)
	defer kernelTypes.Put(cache)
	return load(cache)
}
