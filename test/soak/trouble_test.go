// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/internal/datapath"
	"mustang/internal/service"
)

// The soak has services of two owners, with all pods as backends: a process applies the first until it is killed, and
// the test stores the second one by one.
const (
	soakPods     = 8
	soakServices = 50
	applied      = soakServices / 2
	podServers   = 2
	serverPort   = 8080
)

// soakService returns a service with two to five backends, which depend on a seed.
func soakService(i int, seed uint64) service.Service {
	r := rand.New(rand.NewPCG(seed, uint64(i)))
	var backends []netip.AddrPort
	for _, n := range r.Perm(soakPods * podServers)[:2+r.IntN(4)] {
		backends = append(backends, netip.AddrPortFrom(podIP(n/podServers), uint16(serverPort+n%podServers)))
	}
	return service.Service{Frontend: frontend(i), Protocol: service.TCP, Backends: service.Backends(backends...)}
}

func soakSet(from, to int, seed uint64) (set []service.Service) {
	for i := from; i < to; i++ {
		set = append(set, soakService(i, seed))
	}
	return set
}

// applyVariable makes the test binary a process that applies the services of one owner, each time with other backends.
const applyVariable = "MUSTANG_SOAK_APPLY"

func applyForever(root string) int {
	d, err := datapath.OpenExisting(datapath.Options{Root: root})
	for seed := uint64(os.Getpid()); err == nil; seed += 1 << 32 {
		_, err = d.Services().Apply(context.Background(), service.Agent, soakSet(0, applied, seed))
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// trouble counts the disturbances of the datapath while connections are made.
type trouble struct {
	*host
	changes, restarts, swaps, kills int
}

// change changes backends, opens the datapath again and replaces its programs until the context ends.
func (x *trouble) change(ctx context.Context) error {
	d := x.d
	for seed := uint64(0); ctx.Err() == nil; seed++ {
		var err error
		n := rand.IntN(100)
		if seed < 2 { // each kind at least once
			n = 3 * int(seed)
		}
		switch {
		case n < 2:
			x.swaps++
			if err = renamePrograms(d); err == nil {
				d, err = x.reopen(d)
			}
		case n < 6:
			x.restarts++
			d, err = x.reopen(d)
		case n < 12:
			x.changes += soakServices - applied
			_, err = d.Services().Apply(context.Background(), service.CLI, append(soakSet(applied, soakServices, seed),
				x.flooded()))
		default:
			x.changes++
			_, _, err = d.Services().Put(context.Background(), service.CLI, soakService(applied+
				rand.IntN(soakServices-applied), seed))
		}
		if err != nil {
			return err
		}
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
	}
	if d != x.d {
		return d.Close()
	}
	return nil
}

// reopen closes a datapath, except the test's, and opens it again.
func (x *trouble) reopen(d *datapath.Datapath) (*datapath.Datapath, error) {
	if d != x.d {
		if err := d.Close(); err != nil {
			return x.d, err
		}
	}
	again, err := datapath.Open(context.Background(), datapath.Options{Root: x.root})
	if err != nil {
		return x.d, err
	}
	return again, nil
}

// renamePrograms makes the pinned programs look like another build's, which Open replaces.
func renamePrograms(d *datapath.Datapath) error {
	paths, err := d.ProgramPins()
	for _, path := range paths {
		dir, name := filepath.Split(path)
		if _, rest, ok := strings.Cut(name, "-"); err == nil && ok {
			err = os.Rename(path, dir+"0000-"+rest)
		}
	}
	return err
}

// kill starts a process that applies services, and kills it, until the context ends.
func (x *trouble) kill(ctx context.Context, t *testing.T) error {
	for ctx.Err() == nil {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), applyVariable+"="+x.root)
		cmd.Stderr = t.Output()
		if err := cmd.Start(); err != nil {
			return err
		}
		time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
		if err := cmd.Process.Kill(); err != nil {
			return fmt.Errorf("the process ended before it was killed: %w", err)
		}
		_ = cmd.Wait()
		x.kills++
	}
	return nil
}

func (x *trouble) flooded() service.Service {
	return service.Service{Frontend: frontend(soakServices), Protocol: service.UDP,
		Backends: service.Backends(netip.AddrPortFrom(podIP(0), 9000))}
}

// flood sends 20,000 datagrams a second, or as many as the machine can, until the context ends.
func (x *trouble) flood(ctx context.Context, from pod) error {
	return from.ns.Do(func() error {
		for ctx.Err() == nil {
			if err := flood([]netip.AddrPort{x.flooded().Frontend}, 200); err != nil {
				return err
			}
			time.Sleep(10 * time.Millisecond)
		}
		return nil
	})
}
