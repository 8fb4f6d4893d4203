// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
)

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-O2 -g -Wall -Wextra -Werror -ffile-prefix-map=../..=." sockmap ../../bpf/sockmap.bpf.c -- -I../../bpf -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu

func probeSockmap(lab string) error {
	if _, err := cgroupPath(lab); err != nil {
		return errNoCgroup
	}
	if err := cmp.Or(features.HaveMapType(ebpf.SockHash), features.HaveProgramType(ebpf.SkMsg)); err != nil {
		return fmt.Errorf("the kernel lacks sockmap (CONFIG_BPF_STREAM_PARSER): %w", errors.Join(err, errors.ErrUnsupported))
	}
	return nil
}

// joinSockets joins TCP sockets of the lab's processes past the stack. The kernel drops the program of a table that has
// neither descriptor nor pin.
func (l *Lab) joinSockets() error {
	if !l.Options.Sockmap {
		return nil
	}
	var o sockmapObjects
	if err := loadSockmapObjects(&o, nil); err != nil {
		return fmt.Errorf("load sockmap: %w", err)
	}
	defer o.Close()
	mount := l.store.bpfMount(l.Options.Name)
	if err := mountBPF(mount); err != nil {
		return err
	}
	if err := o.Joined.Pin(filepath.Join(mount, "joined")); err != nil {
		return fmt.Errorf("pin sockmap: %w", err)
	}
	group, err := os.Open(l.cgroup)
	if err != nil {
		return fmt.Errorf("open control group: %w", err)
	}
	defer group.Close()
	pass := link.RawAttachProgramOptions{Target: o.Joined.FD(), Program: o.Pass, Attach: ebpf.AttachSkMsgVerdict}
	join := link.RawAttachProgramOptions{Target: int(group.Fd()), Program: o.Join, Attach: ebpf.AttachCGroupSockOps}
	return cmp.Or(link.RawAttachProgram(pass), link.RawAttachProgram(join))
}
