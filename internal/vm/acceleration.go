// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
)

// How guests run.
const (
	KVM = "kvm" // by the processor itself
	TCG = "tcg" // by QEMU, which emulates one (its "tiny code generator")
)

const (
	kvmFile = "/dev/kvm"
	// kvmTimeout is how long a kernel may take that is booted to see whether it can be
	// with KVM. It takes about a second.
	kvmTimeout = 10 * time.Second
	// kvmGaveUp is in what QEMU prints when KVM can't go on; the guest stands still
	// then.
	kvmGaveUp = "KVM internal error"
	// noRoot is in the last line of a kernel that has come to where it starts the
	// first process, and has no file system with one.
	noRoot = "Unable to mount root fs"
)

// accelerations remembers what [Acceleration] found, by the kernel's image: this
// machine won't change while the process lives.
var accelerations = struct {
	sync.Mutex
	of map[string]string
}{of: map[string]string{}}

// Acceleration says how guests with this kernel can run: [KVM] if the kernel boots
// by it, else [TCG]. That there is KVM is not enough, since inside of a virtual
// machine it may lack what a kernel needs. The first call takes as long as a boot.
func Acceleration(ctx context.Context, kernel Kernel) (string, error) {
	if err := checkTools(true); err != nil {
		return "", err
	}
	accelerations.Lock()
	defer accelerations.Unlock()
	if known, ok := accelerations.of[kernel.Image]; ok {
		return known, nil
	}
	found := TCG
	if file, err := os.OpenFile(kvmFile, os.O_RDWR, 0); err == nil {
		_ = file.Close()
		boots, err := bootsBy(ctx, kernel, KVM)
		if err != nil {
			return "", err
		}
		if boots {
			found = KVM
		}
	}
	accelerations.of[kernel.Image] = found
	return found, nil
}

// bootsBy boots a kernel that is given nothing to start, and reports whether it
// gets that far.
func bootsBy(ctx context.Context, kernel Kernel, acceleration string) (bool, error) {
	ours, theirs, err := socketPair("console")
	if err != nil {
		return false, err
	}
	defer ours.Close()
	h := hardware{options: Options{Kernel: kernel, CPUs: 1, MemoryMB: 256, Acceleration: acceleration}, console: theirs}
	runtime.LockOSThread() // QEMU dies with the thread that starts it
	defer runtime.UnlockOSThread()
	machine, err := h.start()
	_ = theirs.Close()
	if err != nil {
		return false, err
	}
	defer machine.kill()
	console := &tail{}
	printed := make(chan error, 1)
	go func() {
		_, err := io.Copy(console, ours)
		printed <- err // it ends with QEMU
	}()
	deadline := time.NewTimer(kvmTimeout)
	defer deadline.Stop()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("boot a kernel by %s: %w", acceleration, context.Cause(ctx))
		case <-deadline.C:
			return false, nil
		case <-machine.done:
			<-printed
			return strings.Contains(console.String(), noRoot), nil
		case <-poll.C:
			if strings.Contains(machine.stderr.String(), kvmGaveUp) {
				return false, nil
			}
		}
	}
}
