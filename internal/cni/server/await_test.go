// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"mustang/internal/cni"
	"mustang/internal/netns"
)

// asked is an agent's knowledge of Pods.
type asked struct {
	mu    sync.Mutex
	names []string
	known time.Time // from then on
	err   error
}

func (a *asked) await(ctx context.Context, namespace, name, uid string) error {
	a.mu.Lock()
	a.names = append(a.names, namespace+"/"+name+" "+uid)
	known, err := a.known, a.err
	a.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(known)):
		return err
	}
}

// TestAwaitsPolicies has ADD wait for the policies of its Pod before it changes anything, whoever does it: the server, and the plugin
// alone where the server would not, or not in time. Without them ADD fails, for the runtime to try again.
func TestAwaitsPolicies(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		late    time.Duration
		err     error
		options func(*Options)
		config  string
		served  int // ADDs that the server does
		asks    bool
	}{
		"known":              {served: 1, asks: true},
		"late":               {late: 3 * time.Second, asks: true},
		"another version":    {options: func(o *Options) { o.Version = "another" }, asks: true},
		"never":              {err: errors.New("no such Pod"), asks: true},
		"not of Kubernetes":  {config: `,"policies":"auto"`, served: 1},
		"another datapath":   {options: func(o *Options) { o.Plugin.BPFRoot += "2" }, err: errors.New("other directories")},
		"nothing to ask":     {options: func(o *Options) { o.Plugin.Await = nil }, err: errors.New("nothing here asks")},
		"chained, and never": {config: `,"policies":"agent","chained":true,"prevResult":{}`, err: errors.New("no such Pod"), asks: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			o := f.options()
			a := &asked{err: test.err}
			o.Plugin.Await = a.await
			if test.options != nil {
				test.options(&o)
			}
			counts, _ := f.serve(o)
			config := `,"policies":"agent"`
			if test.config != "" {
				config = test.config
			}
			all := network("veth", config)
			if strings.Contains(config, "chained") {
				all = []byte(`{"cniVersion":"1.1.0","name":"net","type":"mustang-cni"` + config + `}`)
			}
			c := call{verb: "ADD", pod: f.pod("a", all), socket: f.socket, env: []string{"CNI_ARGS=K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=1"}}
			before := f.state()
			a.mu.Lock()
			a.known = time.Now().Add(test.late)
			a.mu.Unlock()
			got := f.run(c)
			a.mu.Lock()
			defer a.mu.Unlock()
			if (len(a.names) > 0) != test.asks || test.asks && a.names[0] != "shop/web 1" {
				t.Errorf("it asked for %q", a.names)
			}
			if test.err != nil {
				if got.exit != 1 || !strings.Contains(got.stdout, `"code":11`) || !strings.Contains(got.stdout, test.err.Error()) {
					t.Errorf("exit %d: %s", got.exit, got.stdout)
				}
				f.same(before, "ADD")
				return
			}
			if n := counts.count("ADD"); got.exit != 0 || n != test.served || time.Now().Before(a.known) {
				t.Errorf("exit %d: %s; the server did %d ADDs, want %d", got.exit, got.stdout, n, test.served)
			}
			f.read(c.pod, got)
			f.works(call{verb: "DEL", pod: c.pod, socket: f.socket})
		})
	}
}

// TestAwaitsOfOtherLayout gives a plugin whose maps have another layout no answer: policies do not hold there.
func TestAwaitsOfOtherLayout(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	o := f.options()
	o.Plugin.Await = (&asked{}).await
	var err error
	o.Host, err = netns.Current() // this process asks
	f.must(err)
	defer o.Host.Close()
	f.serve(o)
	r := Request{Environment: map[string]string{
		"CNI_COMMAND": Await, "MUSTANG_CNI_STATE_DIR": f.plugin.StateDir, "MUSTANG_CNI_RUN_DIR": f.plugin.RunDir,
		"MUSTANG_BPF_ROOT": f.plugin.BPFRoot, "MUSTANG_CNI_CGROUP": f.plugin.Cgroup,
	}}
	for layout, want := range map[string]bool{cni.Layout(): true, cni.Layout() + "0": false, "": false} {
		r.Layout = layout
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := AwaitPolicies(ctx, f.socket, r)
		cancel()
		if (err == nil) != want {
			t.Errorf("layout %q: %v", layout, err)
		}
	}
}
