// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"mustang/internal/service"
)

// TestChange makes random changes of services of one owner, beside another process that does the same for another owner. The result
// is what each change says, and nothing is left of what was replaced.
func TestChange(t *testing.T) {
	d := openTest(t)
	var all []service.Service
	var owners sync.WaitGroup
	var mu sync.Mutex
	for i, owner := range []service.Owner{service.Agent, service.CLI} {
		owners.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			want := map[service.Key]service.Service{}
			for range 60 {
				put, remove := randomChange(random, i, want)
				if _, err := d.Services().Change(t.Context(), owner, put, remove); err != nil {
					t.Error(err)
					return
				}
				for _, key := range remove {
					delete(want, key)
				}
				for _, s := range put {
					want[s.Key()] = s
				}
			}
			mu.Lock()
			all = append(all, slices.Collect(maps.Values(want))...)
			mu.Unlock()
		})
	}
	owners.Wait()
	have := rowsOf(t, d)
	if len(have) != len(all) {
		t.Errorf("%d services, want %d", len(have), len(all))
	}
	for _, s := range all {
		if found, ok := have[s.Key()]; !ok || !found.Equal(s) {
			t.Errorf("%s is %+v, want %+v", s, found, s)
		}
	}
	wantClean(t, d)
}

// randomChange puts and removes some services of 20 frontends, at addresses that owners share. A frontend may change its protocol, and some stay as they are.
func randomChange(random *rand.Rand, owner int, have map[service.Key]service.Service) (put []service.Service, remove []service.Key) {
	for i := range 20 {
		if random.IntN(3) > 0 {
			continue
		}
		frontend := fmt.Sprintf("10.96.0.%d:%d", i, 80+owner)
		for key := range have {
			if key.Frontend.String() == frontend {
				remove = append(remove, key)
			}
		}
		if random.IntN(4) == 0 {
			continue
		}
		protocol := []service.Protocol{service.TCP, service.UDP, service.Any}[random.IntN(3)]
		var backends []string
		for range random.IntN(4) {
			backends = append(backends, fmt.Sprintf("192.168.10.%d:8080", 10+len(backends)))
		}
		s := newService(protocol, frontend, backends...)
		remove = slices.DeleteFunc(remove, func(k service.Key) bool { return k == s.Key() })
		put = append(put, s)
	}
	return put, remove
}

// TestChangeRefused makes changes of which one is refused: nothing of them is done.
func TestChangeRefused(t *testing.T) {
	d := openTest(t)
	mine := newService(service.TCP, "10.96.0.1:80", "192.168.10.10:8080")
	others := newService(service.TCP, "10.96.0.2:80", "192.168.10.10:8080")
	for i, s := range []service.Service{mine, others} {
		must2(d.Services().Put(t.Context(), []service.Owner{service.Agent, service.CLI}[i], s))(t)
	}
	added := newService(service.TCP, "10.96.0.3:80", "192.168.10.10:8080")
	for name, refused := range map[string]service.Service{
		"another owner's": others, "a part of another owner's": newService(service.Any, "10.96.0.2:80"),
	} {
		var conflict *ConflictError
		if _, err := d.Services().Change(t.Context(), service.Agent, []service.Service{added, refused}, []service.Key{mine.Key()}); !errors.As(err, &conflict) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := d.Services().Change(t.Context(), service.Agent, []service.Service{added, added}, nil); err == nil {
		t.Error("one frontend twice: no error")
	}
	wantServices(t, d, mine, others)
	missing := service.Key{Frontend: added.Frontend, Protocol: service.TCP}
	result, err := d.Services().Change(t.Context(), service.Agent, []service.Service{mine}, []service.Key{missing, others.Key()})
	if err != nil || result != (Result{Unchanged: 1}) {
		t.Errorf("nothing to do: %+v, %v", result, err)
	}
	wantServices(t, d, mine, others)
	wantClean(t, d)
}
