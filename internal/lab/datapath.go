// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/policy"
	"mustang/internal/service"
)

// owner is the owner that mustang svc and mustang ep use, so that users can change a lab's services and endpoints.
const owner = service.CLI

// addPodDatapath opens the datapath of pod-b's host.
func (l *Lab) addPodDatapath(ctx context.Context) error {
	if l.Options.Datapath != DatapathEBPF {
		return nil
	}
	if err := l.openDatapath(ctx); err != nil {
		return err
	}
	return l.addEndpoints(ctx, l.datapath, PodB)
}

func (l *Lab) openDatapath(ctx context.Context) (err error) {
	if err := mountBPF(l.store.bpfMount(l.Options.Name)); err != nil {
		return err
	}
	l.datapath, err = l.openDatapathAt(ctx, l.BPFRoot())
	return err
}

// openDatapathAt opens a datapath until [Lab.Close], with small maps unless the lab has many services.
func (l *Lab) openDatapathAt(ctx context.Context, root string) (*datapath.Datapath, error) {
	services := uint32(l.Options.Services)
	d, err := datapath.Open(ctx, datapath.Options{Root: root, Sizes: objects.Sizes{
		Services: 1024 + 2*services, Backends: 4096 + 10*services, Connections: 65536, Endpoints: 256,
		Tables: 16384 + 80*services, PolicyRows: 1<<14 + 16*uint32(l.Options.PolicyRules),
	}})
	if err == nil {
		l.opened = append(l.opened, d)
	}
	return d, err
}

func (l *Lab) addEndpoints(ctx context.Context, d *datapath.Datapath, pods ...string) error {
	for _, place := range pods {
		p := l.pods[place]
		at, err := p.network.Endpoint(p.mode, p.pod)
		if err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
		spec := datapath.EndpointSpec{
			Owner: owner, Namespace: at.Namespace, IfName: at.IfName, Host: at.Host, HostIfName: at.HostIfName,
			Segment:   at.Segment,
			Unguarded: l.Options.Unguarded,
		}
		if l.Options.Policy == "" {
			spec.Pod = &policy.Pod{Namespace: podNamespace, Name: place}
		}
		if _, _, err := d.Endpoints().Put(ctx, spec); err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
	}
	return nil
}

const podNamespace = "default"

func (l *Lab) addSocketTranslation(ctx context.Context) error {
	for _, place := range []string{Host, HostB, PodA, PodB} {
		if l.namespaces[place] == nil {
			continue
		}
		if _, err := l.datapath.Sockets().Put(ctx, owner, l.namespaces[place], datapath.HostScope); err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
	}
	if l.cgroup == "" {
		return errNoCgroup
	}
	_, err := l.datapath.Sockets().Attach(ctx, l.cgroup)
	return err
}

// Datapath returns the lab's eBPF datapath, or nil. It belongs to the lab.
func (l *Lab) Datapath() *datapath.Datapath { return l.datapath }

// BPFRoot returns the directory where the lab's datapath is pinned, if it has one.
func (l *Lab) BPFRoot() string { return l.store.pinRoot(l.Options.Name) }

// mountBPF mounts a new bpffs. Objects that are pinned there end with the mount, also if their process was killed.
func mountBPF(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mount bpffs on %s: %w", dir, err)
	}
	return nil
}

// unmountBPF ends the datapaths of a lab, with their files.
func unmountBPF(dir string) error {
	var errFiles error
	roots, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, root := range roots {
		if o, err := objects.Open(root); err == nil { // else not a whole datapath: the next one to write files removes them
			files, err := o.FilesDir()
			errFiles = errors.Join(errFiles, err, os.RemoveAll(files), o.Close())
			_ = os.Remove(filepath.Dir(files)) // unless there are other datapaths
		}
	}
	err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err == nil || errors.Is(err, unix.EINVAL) { // nothing is mounted on the directory
		err = os.Remove(dir)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return errFiles
}
