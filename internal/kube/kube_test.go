// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"mustang/internal/kube/kubetest"
	"mustang/internal/testkit"
)

const (
	services       = "/api/v1/services"
	endpointSlices = "/apis/discovery.k8s.io/v1/endpointslices"
)

func object(name, value string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": %q, "labels": {"a": %q}}}`, name, value)
}

// watched is what a watch has handed out.
type watched struct {
	sync.Mutex
	objects map[string]string
	synced  int
	failing []string
}

func (w *watched) on(e Event) {
	w.Lock()
	defer w.Unlock()
	key := e.Kind.Resource + " " + e.Namespace + "/" + e.Name
	if e.Object == nil {
		delete(w.objects, key)
		return
	}
	w.objects[key] = string(e.Object)
}

func start(t *testing.T, s *kubetest.Server) *watched {
	t.Helper()
	return startOf(t, s, Services, EndpointSlices)
}

func startOf(t *testing.T, s *kubetest.Server, kinds ...Kind) *watched {
	t.Helper()
	c, err := Connect(s.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	return watching(t, c, kinds...)
}

func watching(t *testing.T, c *Client, kinds ...Kind) *watched {
	t.Helper()
	w := &watched{objects: map[string]string{}, synced: -1}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		c.Watch(ctx, kinds, Calls{On: w.on, Synced: func() {
			w.Lock()
			defer w.Unlock()
			w.synced = len(w.objects)
		}, Failing: func(err error) {
			w.Lock()
			defer w.Unlock()
			w.failing = append(w.failing, fmt.Sprint(err))
		}})
	}()
	return w
}

func (w *watched) eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() error {
		w.Lock()
		defer w.Unlock()
		if !is() {
			return fmt.Errorf("%s: there are %v", what, w.objects)
		}
		return nil
	})
}

// TestPages watches more objects than there are in a page of a list.
func TestPages(t *testing.T) {
	s := kubetest.Start(t)
	const all = 1200
	for i := range all {
		s.Put(t, services, object(fmt.Sprint("service-", i), "1"))
	}
	w := start(t, s)
	w.eventually(t, "first list", func() bool { return w.synced == all })
	s.Delete(services, "shop", "service-7")
	s.Forget()
	s.Put(t, services, object("last", "1"))
	w.eventually(t, "another list", func() bool { return len(w.objects) == all && w.objects["services shop/last"] != "" })
}

// TestWatch changes objects, ends the watch, and changes others meanwhile.
func TestWatch(t *testing.T) {
	s := kubetest.Start(t)
	s.Put(t, services, object("one", "1"))
	s.Put(t, services, object("two", "1"))
	w := start(t, s)
	w.eventually(t, "first list", func() bool { return w.synced == 2 })
	s.Put(t, services, object("one", "2"))
	s.Delete(services, "shop", "two")
	s.Put(t, services, object("three", "1"))
	w.eventually(t, "changes", func() bool { return len(w.objects) == 2 && w.objects["services shop/three"] != "" })
	if before := w.objects["services shop/one"]; before == "" {
		t.Error("one is gone")
	}
	s.Delete(services, "shop", "three")
	s.Forget()
	s.Put(t, services, object("four", "1"))
	w.eventually(t, "after an expired watch", func() bool {
		return len(w.objects) == 2 && w.objects["services shop/four"] != "" && w.objects["services shop/one"] != ""
	})
}

// TestFailing tells once of all kinds why they cannot be read, and once that they can be again.
func TestFailing(t *testing.T) {
	s := kubetest.Start(t)
	deny := func(resource string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprintf(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
"message": "%s is forbidden: User \"joe\" cannot list resource"}`, resource)
		}
	}
	s.Handle(services, deny("services"))
	s.Handle(endpointSlices, deny("endpointslices"))
	w := start(t, s)
	const forbidden = "cannot list services and endpointslices: forbidden for joe (apply the ClusterRoleBinding)"
	w.eventually(t, "forbidden", func() bool { return strings.Join(w.failing, "|") == forbidden })
	s.Handle(services, nil)
	s.Handle(endpointSlices, nil)
	w.eventually(t, "allowed", func() bool { return w.failing[len(w.failing)-1] == "<nil>" })
	w.failing = nil
	s.Stop()
	w.eventually(t, "no server", func() bool { return len(w.failing) == 1 })
	if text := w.failing[0]; !strings.HasPrefix(text, "cannot read the cluster: http://127.0.0.1:") || !strings.HasSuffix(text, "connect: connection refused") || strings.Count(text, "127.0.0.1") != 1 {
		t.Errorf("without a server: %s", text)
	}
}

// TestConnect refuses a file that is none.
func TestConnect(t *testing.T) {
	if c, err := Connect(kubetest.Start(t).Kubeconfig(t)); err != nil || len(c.Addresses()) != 1 || !c.Addresses()[0].IsLoopback() {
		t.Errorf("a server at a loopback address: %v", err)
	}
	if _, err := Connect("/nonexistent"); err == nil {
		t.Error("there is a client without a file")
	}
}

// TestAddressOfName tells the address of a server that has a name, once it has been reached.
func TestAddressOfName(t *testing.T) {
	path := kubetest.Start(t).Kubeconfig(t)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.ReplaceAll(text, []byte("127.0.0.1"), []byte("localhost")), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Connect(path)
	if err != nil || len(c.Addresses()) != 0 {
		t.Fatalf("%v before a request: %v", c.Addresses(), err)
	}
	_ = c.SetAvailable(t.Context(), "none") // there is no such node
	if all := c.Addresses(); len(all) != 1 || !all[0].IsLoopback() {
		t.Errorf("addresses %v", all)
	}
}
