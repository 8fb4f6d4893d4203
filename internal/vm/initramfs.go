// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cavaliergopher/cpio"
	"github.com/ulikunitz/xz"
	"golang.org/x/sys/unix"
)

// Program is the path of Options.Init in a bare guest, its only program.
const Program = "/mustang"

// Paths in the initramfs.
const (
	initPath   = "/init"
	configPath = "/config.json"
	modulePath = "/modules/"
)

type guestConfig struct {
	Command []string
	Dir     string
	Env     []string
	Insert  []string // files of modules below modulePath to load, in this order
	Modules string   // the directory of the kernel's modules in the host's root
	Mounts  []mount  // the host's directories, the root first; none in a bare guest
	Network *Network `json:",omitempty"` // configures the guest's network device; nil without one
	Input   bool     // true if the command gets input
}

type mount struct {
	Tag      string // name of the virtio device
	Path     string // in the host and in the guest
	Writable bool   // without an overlay
}

func (o Options) buildInitramfs(mounts []mount) (_ *os.File, err error) {
	needed := slices.Concat(portModules, o.Modules)
	if !o.Bare {
		needed = append(needed, rootModules...)
	}
	if o.Network != nil {
		needed = append(needed, networkModules...)
	}
	modules, err := moduleOrder(o.Kernel.Modules, needed)
	if err != nil {
		return nil, fmt.Errorf("kernel modules: %w", err)
	}
	if err := CheckStatic(o.Init); err != nil {
		return nil, fmt.Errorf("init program: %w", err)
	}
	program, err := os.ReadFile(o.Init)
	if err != nil {
		return nil, fmt.Errorf("init program: %w", err)
	}
	fd, err := unix.MemfdCreate("mustang-initramfs", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a file in memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "initramfs")
	buffered := bufio.NewWriterSize(file, 1<<20)
	a := archive{w: cpio.NewWriter(buffered)}
	for _, dir := range []string{"dev", "proc", "sys", "root", "lower", "upper", "modules"} {
		a.add(dir, cpio.TypeDir|0o755, nil)
	}
	a.add(initPath[1:], cpio.TypeReg|0o755, program)
	a.add(Program[1:], cpio.TypeSymlink|0o777, []byte(initPath))
	config := guestConfig{
		Command: o.Command, Dir: o.Dir, Env: o.Env, Modules: o.Kernel.Modules, Mounts: mounts, Network: o.Network,
		Input: o.Stdin != nil,
	}
	for i, path := range modules {
		data, err := readModule(filepath.Join(o.Kernel.Modules, path))
		if err != nil {
			a.err = cmp.Or(a.err, fmt.Errorf("kernel module %s: %w", path, err))
		}
		config.Insert = append(config.Insert, fmt.Sprintf("%02d-%s.ko", i, moduleName(path)))
		a.add(modulePath[1:]+config.Insert[i], cpio.TypeReg|0o600, data)
	}
	text, err := json.Marshal(config)
	a.add(configPath[1:], cpio.TypeReg|0o600, text)
	if err := cmp.Or(err, a.err, a.w.Close(), buffered.Flush()); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("write the initramfs: %w", err)
	}
	return file, nil
}

type archive struct {
	w   *cpio.Writer
	err error
}

func (a *archive) add(name string, mode cpio.FileMode, data []byte) {
	if a.err != nil {
		return
	}
	if a.err = a.w.WriteHeader(&cpio.Header{Name: name, Mode: mode, Size: int64(len(data))}); a.err == nil &&
		len(data) > 0 {
		_, a.err = a.w.Write(data)
	}
}

// CheckStatic returns an error if a program needs a dynamic loader: guests and containers of a lab lack one.
func CheckStatic(path string) error {
	file, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is not static (build it with CGO_ENABLED=0)", path)
		}
	}
	return nil
}

// Modules that guests need unless the kernel's image has them: for the port, the root, TAP devices and a network.
var (
	portModules    = []string{"virtio_pci", "virtio_console"}
	rootModules    = []string{"fuse", "virtiofs", "overlay", filepath.Base(tunFile)}
	networkModules = []string{"virtio_net"}
)

// moduleOrder returns the files of modules and their dependencies, in the order of loading.
func moduleOrder(dir string, names []string) ([]string, error) {
	deps, err := os.ReadFile(filepath.Join(dir, modulesDep))
	if err != nil {
		return nil, err
	}
	builtin, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	known := map[string][]string{}
	for file := range strings.Lines(string(builtin)) {
		known[moduleName(strings.TrimSpace(file))] = nil
	}
	for line := range strings.Lines(string(deps)) {
		// "a.ko.xz: b.ko.xz c.ko.xz": a needs b, which needs c
		file, needs, _ := strings.Cut(strings.TrimSpace(line), ":")
		known[moduleName(file)] = append([]string{file}, strings.Fields(needs)...)
	}
	var order []string
	listed := map[string]bool{}
	for _, name := range names {
		files, ok := known[moduleName(name)]
		if !ok {
			return nil, fmt.Errorf("no %s in %s", name, dir)
		}
		for i := len(files) - 1; i >= 0; i-- {
			if !listed[files[i]] {
				listed[files[i]] = true
				order = append(order, files[i])
			}
		}
	}
	return order, nil
}

func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

func readModule(file string) ([]byte, error) {
	data, err := os.ReadFile(file)
	switch filepath.Ext(file) {
	case ".ko":
		return data, err
	case ".xz":
		reader, xzErr := xz.NewReader(bytes.NewReader(data))
		if err := cmp.Or(err, xzErr); err != nil {
			return nil, err
		}
		return io.ReadAll(reader)
	}
	return nil, errors.New("unknown compression")
}
