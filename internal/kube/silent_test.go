// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"mustang/internal/kube/kubetest"
)

// TestSilentServer has an API server accept requests and not answer: that is told, and all is read once it answers.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	s.Put(t, services, object("one", "1"))
	s.Handle(services, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	c, err := Connect(s.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	at := c.rest.(*rest.RESTClient).Client.Transport
	for {
		wrapper, ok := at.(utilnet.RoundTripperWrapper)
		if !ok {
			break
		}
		at = wrapper.WrappedRoundTripper()
	}
	transport := at.(*http.Transport)
	if wait := transport.ResponseHeaderTimeout; wait != answerWithin {
		t.Errorf("an answer is waited for for %s, want %s", wait, answerWithin)
	}
	transport.ResponseHeaderTimeout = 100 * time.Millisecond
	w := watching(t, c, Services)
	w.eventually(t, "told", func() bool {
		return len(w.failing) == 1 && strings.HasSuffix(w.failing[0], "net/http: timeout awaiting response headers")
	})
	s.Handle(services, nil)
	w.eventually(t, "read", func() bool { return w.synced == 1 && w.failing[len(w.failing)-1] == "<nil>" })
}

// TestStalled has an API server, or something before it, send the head of a list and nothing more: that is told, and all is read once it answers. A watch that
// is silent beyond its time ends.
func TestStalled(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	s.Put(t, services, object("one", "1"))
	s.Handle(services, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") == "" {
			_, _ = w.Write([]byte(`{"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [`))
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	c, err := Connect(s.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	if c.readWithin != readWithin || c.watchBeyond != watchBeyond {
		t.Errorf("a list may take %s, and a watch %s more", c.readWithin, c.watchBeyond)
	}
	c.watchBeyond = time.Second
	silent := &store{watcher: &watcher{}, kind: Services}
	none := int64(0)
	w, err := c.list(silent, &trouble{}).WatchFuncWithContext(t.Context(), metav1.ListOptions{TimeoutSeconds: &none})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	select {
	case <-w.ResultChan():
	case <-time.After(30 * time.Second):
		t.Error("a silent watch stays open")
	}
	c, err = Connect(s.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	c.readWithin = 5 * time.Second
	all := watching(t, c, Services)
	all.eventually(t, "told", func() bool {
		return len(all.failing) == 1 && strings.HasSuffix(all.failing[0], "context deadline exceeded")
	})
	s.Handle(services, nil)
	all.eventually(t, "read", func() bool { return all.synced == 1 && all.failing[len(all.failing)-1] == "<nil>" })
}
