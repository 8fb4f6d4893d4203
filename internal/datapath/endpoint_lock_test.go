// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sync/errgroup"

	"mustang/internal/service"
	"mustang/internal/testkit"
)

// openAgain opens the datapath once more, as another process would.
func openAgain(t *testing.T, d *Datapath) *Datapath {
	t.Helper()
	return openSized(t, Options{Root: d.objects.Root()})
}

// TestServicesWhileAttaching stops calls that attach or detach programs at their first one. Services and hosts change
// meanwhile, and lists are read.
func TestServicesWhileAttaching(t *testing.T) {
	n, d, cgroup := routed(t), openTest(t), testCgroup(t)
	n.wire(t)
	other := openAgain(t, d)
	uplink := must(FindUplink(n.host, "wire"))(t)
	for _, c := range []struct {
		name string
		call func() error
	}{
		{"put endpoint", func() error { _, _, err := d.Endpoints().Put(t.Context(), n.attachment(0)); return err }},
		{"delete endpoint", func() error { return d.Endpoints().DeleteDevice(t.Context(), n.attachment(0)) }},
		{"put uplink", func() error { _, err := d.Uplinks().Put(t.Context(), n.host, "wire"); return err }},
		{"delete uplink", func() error { return d.Uplinks().Delete(t.Context(), uplink) }},
		{"attach to cgroup", func() error { _, err := d.Sockets().Attach(t.Context(), cgroup); return err }},
		{"detach from cgroup", func() error { return d.Sockets().Detach(t.Context(), cgroup) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			stopped, resume, ended := make(chan struct{}, 1), make(chan struct{}), make(chan error, 1)
			d.objects.BeforeLink = func() {
				select {
				case stopped <- struct{}{}:
				default:
				}
				<-resume
			}
			go func() { ended <- c.call() }()
			select {
			case <-stopped:
			case err := <-ended:
				t.Fatalf("it attached and detached nothing: %v", err)
			}
			if err := changeServices(t, n, other); err != nil {
				t.Error(err)
			}
			close(resume)
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// changeServices fails if a lock is not free.
func changeServices(t *testing.T, n network, d *Datapath) error {
	ctx := t.Context()
	s := newService(service.TCP, "10.96.0.7:80", "192.168.10.10:8080")
	_, _, err := d.Services().Put(ctx, service.CLI, s)
	_, hostErr := d.Sockets().Put(ctx, service.CLI, n.host, HostScope)
	_, listErr := d.Uplinks().List(ctx)
	_, cgroupErr := d.Sockets().Cgroups(ctx)
	return errors.Join(err, hostErr, listErr, cgroupErr, d.Services().Delete(ctx, service.CLI, s.Key()),
		d.Sockets().Delete(ctx, service.CLI, cookieOf(t, n.host)))
}

// wantWhole fails the test unless the first pod is an endpoint with two programs and socket translation, or has nothing.
func wantWhole(t *testing.T, n network, d *Datapath, there bool) {
	t.Helper()
	var want []string
	if there {
		want = []string{podA4, podA6}
	}
	made := wantEndpoints(t, d, want...)
	wantLinks(t, d, len(want))
	if there && len(made) > 0 {
		pinned, err := filepath.Glob(pins(d, "links", fmt.Sprintf("%d-host-*", made[0].ID)))
		if err != nil || len(pinned) != 2 {
			t.Errorf("endpoint %d has links %v, %v", made[0].ID, pinned, err)
		}
		if err := d.Endpoints().Check(t.Context(), n.attachment(0)); err != nil {
			t.Error(err)
		}
	}
	if row, _, err := d.objects.Namespaces.Get(cookieOf(t, n.pods[0])); err != nil || (row.Flags != 0) != there {
		t.Errorf("flags of the network namespace %d, %v; want some: %v", row.Flags, err, there)
	}
}

// TestPutAgainstDelete puts and deletes one endpoint from two handles at once.
func TestPutAgainstDelete(t *testing.T) {
	n, d := routed(t), openTest(t)
	other := openAgain(t, d)
	for range testkit.Repeats(20, 200) {
		var group errgroup.Group
		group.Go(func() error { _, _, err := d.Endpoints().Put(t.Context(), n.attachment(0)); return err })
		group.Go(func() error { _, _, err := other.Endpoints().Put(t.Context(), n.attachment(0)); return err })
		group.Go(func() error {
			if err := other.Endpoints().DeleteDevice(t.Context(), n.attachment(0)); !errors.Is(err, os.ErrNotExist) {
				return err
			}
			return nil
		})
		succeed(t, group.Wait())
		all := must(d.Endpoints().List(t.Context()))(t)
		wantWhole(t, n, d, len(all) > 0)
	}
}

// TestUndoneBesideAnother adds a second device of a pod, which goes before it has its programs.
func TestUndoneBesideAnother(t *testing.T) {
	n, d := routed(t), openTest(t)
	must2(d.Endpoints().Put(t.Context(), n.attachment(0)))(t)
	n.run(t, `
		-n HOST link add vc type veth peer name eth1 netns PODA
		-n PODA addr add 192.168.11.10/32 dev eth1`)
	d.objects.BeforeLink = func() {
		d.objects.BeforeLink = nil
		n.run(t, "-n HOST link del vc")
	}
	second := n.attachment(0)
	second.IfName = "eth1"
	if _, _, err := d.Endpoints().Put(t.Context(), second); err == nil {
		t.Error("no error although the device went")
	}
	wantWhole(t, n, d, true)
}
