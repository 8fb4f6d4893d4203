// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/http"
	"strings"
	"testing"
	"time"

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
