// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// socketHook is one program of socket translation at its place in a cgroup.
type socketHook struct {
	program string // its name in the object
	attach  ebpf.AttachType
}

// socketHooks are all such places, in the order in which they are taken: those that translate back come first, and are
// the last to go.
func socketHooks() []socketHook {
	return []socketHook{
		{sockProgGetpeername4, ebpf.AttachCgroupInet4GetPeername},
		{sockProgGetpeername6, ebpf.AttachCgroupInet6GetPeername},
		{sockProgRecvmsg4, ebpf.AttachCGroupUDP4Recvmsg},
		{sockProgRecvmsg6, ebpf.AttachCGroupUDP6Recvmsg},
		{sockProgSendmsg4, ebpf.AttachCGroupUDP4Sendmsg},
		{sockProgSendmsg6, ebpf.AttachCGroupUDP6Sendmsg},
		{sockProgConnect4, ebpf.AttachCGroupInet4Connect},
		{sockProgConnect6, ebpf.AttachCGroupInet6Connect},
	}
}

// socketPrograms are the names of all programs of the object.
func socketPrograms() []string {
	names := []string{sockProgRetireUdp}
	for _, h := range socketHooks() {
		names = append(names, h.program)
	}
	return names
}

// socketPrograms is where they are pinned, apart from those for packets: most datapaths have either.
func (l layout) socketPrograms() string { return filepath.Join(l.version(), "socks") }

func (l layout) socketProgramPin(digest, program string) string {
	return filepath.Join(l.socketPrograms(), digest+"-"+program)
}

// ensureSocketPrograms is ensurePrograms for sockets. The programs are pinned when the first cgroup gets them; until then
// there is nothing to do. The caller has the lock.
func (d *Datapath) ensureSocketPrograms() error {
	pinned, err := pinnedBuilds(d.layout.socketPrograms(), sockDigest)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if pinned.ours < len(socketPrograms()) {
		if err := d.loadSocketPrograms(); err != nil {
			return err
		}
	}
	return pinned.replace(d.updateSocketLinks)
}

// loadSocketPrograms loads the programs over the pinned maps, and pins them.
func (d *Datapath) loadSocketPrograms() error {
	collection, err := d.socketCollection()
	if err != nil {
		return err
	}
	defer collection.Close()
	for _, name := range socketPrograms() {
		if err := pinProgram(collection.Programs[name], d.layout.socketProgramPin(sockDigest, name)); err != nil {
			return err
		}
	}
	return nil
}

// socketProgram returns this build's pinned program.
func (d *Datapath) socketProgram(name string) (*ebpf.Program, error) {
	p, err := ebpf.LoadPinnedProgram(d.layout.socketProgramPin(sockDigest, name), nil)
	if err != nil {
		return nil, fmt.Errorf("open socket program %s: %w", name, err)
	}
	return p, nil
}

// ProbeSocket returns why sockets cannot be translated here: an *UnsupportedError if the kernel lacks it, a *CgroupError if
// there is no hierarchy of control groups; nil if nothing is in the way.
func ProbeSocket() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("probe socket translation: %w", ErrNotRoot)
	}
	if _, err := CgroupRoot(); err != nil {
		return err
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.CGroupSockAddr,
		AttachType:   ebpf.AttachCgroupInet4GetPeername,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
		License:      "Dual BSD/GPL",
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, ebpf.ErrNotSupported) {
		return &UnsupportedError{Feature: "cgroup program for getpeername", Kernel: "5.8", Err: err}
	}
	if err != nil {
		return fmt.Errorf("load a program: %w", err)
	}
	return p.Close()
}
