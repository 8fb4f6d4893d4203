// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
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
	uplink, err := FindUplink(n.host, "wire")
	if err != nil {
		t.Fatal(err)
	}
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
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		all, err := d.Endpoints().List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wantWhole(t, n, d, len(all) > 0)
	}
}

// Variables of a process that kills itself while it attaches or detaches programs.
const (
	killedVariable = "MUSTANG_DATAPATH_KILLED" // the root
	verbVariable   = "MUSTANG_DATAPATH_VERB"
	deathVariable  = "MUSTANG_DATAPATH_DEATH" // the link at which the process kills itself
	placeVariable  = "MUSTANG_DATAPATH_PLACE" // names of the network namespaces of host and pod, or a cgroup's directory
)

// killedChild is the process. It returns 0 if it had fewer links to attach or detach.
func killedChild(root string) int {
	death, err := strconv.Atoi(os.Getenv(deathVariable))
	var d *Datapath
	if err == nil {
		d, err = OpenExisting(Options{Root: root})
	}
	if err == nil {
		d.objects.BeforeLink = func() {
			if death--; death == 0 {
				_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
			}
		}
		err = runVerb(d, os.Getenv(verbVariable), os.Getenv(placeVariable))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func runVerb(d *Datapath, verb, place string) error {
	switch verb {
	case "attach":
		_, err := d.Sockets().Attach(context.Background(), place)
		return err
	case "detach":
		return d.Sockets().Detach(context.Background(), place)
	}
	var spaces [2]*netns.Namespace
	for i, name := range strings.Fields(place) {
		var err error
		if spaces[i], err = netns.Open(filepath.Join(netns.Directory, name)); err != nil {
			return err
		}
	}
	spec := EndpointSpec{Host: spaces[0], Namespace: spaces[1], IfName: "eth0"}
	if verb == "delete" {
		return d.Endpoints().DeleteDevice(context.Background(), spec)
	}
	_, _, err := d.Endpoints().Put(context.Background(), spec)
	return err
}

// killed is a call of such a process.
type killed struct {
	*Datapath
	verb, place string
}

// diesAt makes the call, and reports whether the process got to the link at which it kills itself.
func (k killed) diesAt(t *testing.T, death int) bool {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), killedVariable+"="+k.objects.Root(), verbVariable+"="+k.verb,
		deathVariable+"="+strconv.Itoa(death), placeVariable+"="+k.place)
	cmd.Stderr = os.Stderr
	err := cmd.Run()
	if err != nil && cmd.ProcessState.ExitCode() != -1 {
		t.Fatalf("%s: %v", k.verb, err)
	}
	return err != nil
}

// TestEndpointKilled kills a process that puts or deletes an endpoint before each link that it attaches or detaches. The
// same call again does the rest.
func TestEndpointKilled(t *testing.T) {
	n, d := routed(t), openTest(t)
	for _, verb := range []string{"put", "delete"} {
		for death := 1; ; death++ {
			_, _, err := d.Endpoints().Put(t.Context(), n.attachment(0))
			if err == nil && verb == "put" {
				err = d.Endpoints().DeleteDevice(t.Context(), n.attachment(0))
			}
			if err != nil {
				t.Fatal(err)
			}
			wantWhole(t, n, d, verb == "delete")
			place := filepath.Base(n.host.Name()) + " " + filepath.Base(n.pods[0].Name())
			if !(killed{d, verb, place}).diesAt(t, death) {
				wantWhole(t, n, d, verb == "put")
				if death <= 2 {
					t.Errorf("%s has %d links", verb, death-1)
				}
				break
			}
			if verb == "put" {
				_, _, err = d.Endpoints().Put(t.Context(), n.attachment(0))
			} else if err = d.Endpoints().DeleteDevice(t.Context(), n.attachment(0)); errors.Is(err, os.ErrNotExist) {
				err = nil
			}
			if err != nil {
				t.Fatalf("%s after the death at link %d: %v", verb, death, err)
			}
			wantWhole(t, n, d, verb == "put")
		}
	}
}

// TestUndoneBesideAnother adds a second device of a pod, which goes before it has its programs.
func TestUndoneBesideAnother(t *testing.T) {
	n, d := routed(t), openTest(t)
	if _, _, err := d.Endpoints().Put(t.Context(), n.attachment(0)); err != nil {
		t.Fatal(err)
	}
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
