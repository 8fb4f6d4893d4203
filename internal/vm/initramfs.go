// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/cavaliergopher/cpio"
	"golang.org/x/sys/unix"
)

// Program is what a bare guest has Options.Init as. Its command is to be that,
// since it has no other program.
const Program = "/mustang"

// Places in the initramfs.
const (
	initPath   = "/init"
	orderPath  = "/order.json"
	modulePath = "/modules/"
)

// order is what the guest is told, through the initramfs.
type order struct {
	Command []string
	Dir     string
	Env     []string
	// Insert are files of modules below modulePath, to be loaded in this order.
	Insert []string
	// Modules is the directory of the kernel's modules in the host's root.
	Modules string
	// Mounts are the host's directories, the root first; none in a bare guest.
	Mounts []mount
	// Network is how the guest's network device is to be; or nil.
	Network *Interior `json:",omitempty"`
	// Input is whether the command gets input.
	Input bool
}

// initramfs builds the archive that the kernel starts from.
func (o Options) initramfs(mounts []mount) (*os.File, error) {
	needed := portModules
	orders := order{
		Command: o.Command, Dir: o.Dir, Env: o.Env, Modules: o.Kernel.Modules, Mounts: mounts, Input: o.Stdin != nil,
	}
	if !o.Bare {
		needed = slices.Concat(needed, rootModules)
	}
	if o.Network != nil {
		needed = slices.Concat(needed, networkModules)
		orders.Network = o.Network.interior()
	}
	modules, err := loadModules(o.Kernel.Modules, slices.Concat(needed, o.Modules))
	if err != nil {
		return nil, err
	}
	return buildInitramfs(orders, o.Init, modules)
}

// mount is a directory of the host as the guest gets it.
type mount struct {
	Tag      string // name of the virtio device
	Path     string // in host and guest
	Writable bool   // not below an overlay
}

// buildInitramfs writes the archive that the kernel starts from into a file
// without a name.
func buildInitramfs(o order, initProgram string, modules []module) (_ *os.File, err error) {
	program, err := readStatic(initProgram)
	if err != nil {
		return nil, err
	}
	for i, m := range modules {
		o.Insert = append(o.Insert, fmt.Sprintf("%02d-%s.ko", i, m.name))
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("mustang-initramfs", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "initramfs")
	defer func() {
		if err != nil {
			_ = file.Close()
		}
	}()
	buffered := bufio.NewWriterSize(file, 1<<20)
	a := archive{w: cpio.NewWriter(buffered)}
	for _, dir := range []string{"dev", "proc", "sys", "root", "lower", "upper", "modules"} {
		a.add(dir, cpio.TypeDir|0o755, nil)
	}
	a.add(initPath[1:], cpio.TypeReg|0o755, program)
	a.add(Program[1:], cpio.TypeSymlink|0o777, []byte(initPath))
	a.add(orderPath[1:], cpio.TypeReg|0o600, text)
	for i, m := range modules {
		a.add(modulePath[1:]+o.Insert[i], cpio.TypeReg|0o600, m.data)
	}
	if a.err == nil {
		a.err = a.w.Close()
	}
	if a.err == nil {
		a.err = buffered.Flush()
	}
	if a.err != nil {
		return nil, fmt.Errorf("write the initramfs: %w", a.err)
	}
	return file, nil
}

// archive adds files to a cpio archive until one fails.
type archive struct {
	w   *cpio.Writer
	err error
}

func (a *archive) add(name string, mode cpio.FileMode, data []byte) {
	if a.err != nil {
		return
	}
	if a.err = a.w.WriteHeader(&cpio.Header{Name: name, Mode: mode, Size: int64(len(data))}); a.err == nil && len(data) > 0 {
		_, a.err = a.w.Write(data)
	}
}

// readStatic reads a program that needs no dynamic loader, which the initramfs
// lacks.
func readStatic(path string) ([]byte, error) {
	file, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("init program %s: %w", path, err)
	}
	defer file.Close()
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			return nil, fmt.Errorf("init program %s is not static (build it with CGO_ENABLED=0)", path)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("init program: %w", err)
	}
	return data, nil
}
