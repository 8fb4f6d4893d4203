// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/policy"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// table is a table of services without a kernel.
type table struct {
	sync.Mutex
	rows    map[service.Key]service.Service
	fails   int // calls that fail
	puts    int
	calls   int         // of Change
	other   service.Key // another owner's
	room    int         // for peers of a namespace, 0: for any number
	refuses error       // of policies
	removed bool
	at      []netip.Addr // addresses of the node that is attached
	ports   []uint16     // that are answered
	names   []string     // of the Services there
	rowRoom int          // for services, 0: for any number
	busy    uint16       // a port that another process has
	absent  bool         // no device has the node's addresses
	kept    []policy.Policy
	rules
}

// rules are the policies of a table, by name, with the pods whose labels it has.
type rules struct{ policies, pods []string }

// applied is a table as the policies of a datapath.
type applied struct{ *table }

func (a applied) Apply(_ context.Context, _ service.Owner, want policies.Set) (policies.Result, error) {
	a.Lock()
	defer a.Unlock()
	if a.refuses != nil {
		return policies.Result{}, a.refuses
	}
	peers := 0
	for _, p := range want.Policies {
		for _, r := range p.Ingress {
			peers += len(r.Peers)
		}
	}
	if a.room > 0 && peers > a.room {
		return policies.Result{}, &policy.QuotaError{Over: []*policy.LimitError{{Namespace: "shop", What: "verdict rows",
			Number: 9114, Limit: 8192}}}
	}
	a.rules, a.kept = rules{}, want.Policies
	for _, p := range want.Policies {
		a.rules.policies = append(a.rules.policies, p.Namespace+"/"+p.Name)
	}
	for _, p := range want.Pods {
		a.rules.pods = append(a.rules.pods, fmt.Sprint(p.Name, " ", p.Labels, p.Addresses))
	}
	return policies.Result{}, nil
}

// ByOwner returns the policies that were applied.
func (a applied) ByOwner(context.Context) (map[service.Owner][]policy.Policy, []policy.Pod, error) {
	a.Lock()
	defer a.Unlock()
	return map[service.Owner][]policy.Policy{service.Agent: a.kept}, nil, nil
}

func (a applied) List() (all []policies.Listed, err error) {
	a.Lock()
	defer a.Unlock()
	for _, p := range a.kept {
		all = append(all, policies.Listed{Policy: p, Owner: service.Agent, Pods: 1})
	}
	return all, nil
}

// Generation fails once the table is removed.
func (t *table) Generation() (uint32, error) {
	t.Lock()
	defer t.Unlock()
	if t.removed {
		return 0, os.ErrNotExist
	}
	return 1, nil
}

func (t *table) call(keys ...service.Key) error {
	if t.fails > 0 {
		t.fails--
		return errors.New("no")
	}
	if t.other != (service.Key{}) && slices.Contains(keys, t.other) {
		return &datapath.ConflictError{What: "another owner's"}
	}
	return nil
}

func (t *table) List(context.Context) (all []service.Service, err error) {
	t.Lock()
	defer t.Unlock()
	for _, s := range t.rows {
		all = append(all, s)
	}
	return all, nil
}

func (t *table) Apply(_ context.Context, owner service.Owner, want []service.Service) (datapath.Result, error) {
	t.Lock()
	defer t.Unlock()
	rows := map[service.Key]service.Service{}
	for _, s := range want {
		s.Owner = owner
		rows[s.Key()] = s
	}
	err := t.call(slices.Collect(maps.Keys(rows))...)
	if err == nil && t.rowRoom > 0 && len(rows) > t.rowRoom {
		err = &objects.FullError{Map: "services"}
	}
	if err == nil {
		t.rows = rows
	}
	return datapath.Result{}, err
}

func (t *table) Change(_ context.Context, owner service.Owner, put []service.Service,
	remove []service.Key) (datapath.Result, error) {
	t.Lock()
	defer t.Unlock()
	t.puts += len(put)
	t.calls++
	keys := slices.Clone(remove)
	for _, s := range put {
		keys = append(keys, s.Key())
	}
	if err := t.call(keys...); err != nil {
		return datapath.Result{}, err
	}
	for _, key := range remove {
		delete(t.rows, key)
	}
	for _, s := range put {
		if _, has := t.rows[s.Key()]; !has && t.rowRoom > 0 && len(t.rows) >= t.rowRoom {
			return datapath.Result{}, &objects.FullError{Map: "services"}
		}
		s.Owner = owner
		t.rows[s.Key()] = s
	}
	return datapath.Result{}, nil
}

// String lists the rows: "10.96.0.1:80/tcp [10.1.0.1:8080]".
func (t *table) String() string {
	t.Lock()
	defer t.Unlock()
	var lines []string
	for key, s := range t.rows {
		lines = append(lines, fmt.Sprint(key, " ", s.Backends))
	}
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

func (t *table) wants(test *testing.T, what, want string) {
	test.Helper()
	testkit.Eventually(test, 30*time.Second, func() error {
		if have := t.String(); have != want {
			return fmt.Errorf("%s: there is %q, want %q", what, have, want)
		}
		return nil
	})
}

// wantsRules waits until the policies and their pods are equal to want.
func (t *table) wantsRules(test *testing.T, what string, want rules) {
	test.Helper()
	testkit.Eventually(test, 30*time.Second, func() error {
		t.Lock()
		defer t.Unlock()
		if fmt.Sprint(t.rules) != fmt.Sprint(want) {
			return fmt.Errorf("%s: there is %v, want %v", what, t.rules, want)
		}
		return nil
	})
}
