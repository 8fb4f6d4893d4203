// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"mustang/internal/kube/kubetest"
	"mustang/internal/testkit"
)

const (
	services       = "/api/v1/services"
	endpointSlices = "/apis/discovery.k8s.io/v1/endpointslices"
)

func object(name, value string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": %q, `+
		`"labels": {"a": %q}}}`, name, value)
}

// watched stores the objects that a watch has handed out.
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
	c := testkit.Must(Connect(s.Kubeconfig(t)))(t)
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
		missing := len(kinds)
		c.Watch(ctx, kinds, Calls{On: w.on, Listed: func(Kind) {
			w.Lock()
			defer w.Unlock()
			if missing--; missing == 0 {
				w.synced = len(w.objects)
			}
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
			return fmt.Errorf("%s: there are %v, failing %q", what, w.objects, w.failing)
		}
		return nil
	})
}

// TestPages watches more objects than there are in a page of a list, at a server without streams.
func TestPages(t *testing.T) {
	s := kubetest.Start(t)
	s.ListsOnly = true
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
	testkit.Check(t, len(w.failing) == 0, "it reports %q", w.failing)
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
	before := w.objects["services shop/one"]
	testkit.Check(t, before != "", "one is gone")
	s.Delete(services, "shop", "three")
	s.Forget()
	s.Put(t, services, object("four", "1"))
	w.eventually(t, "after an expired watch", func() bool {
		return len(w.objects) == 2 && w.objects["services shop/four"] != "" && w.objects["services shop/one"] != ""
	})
}

// TestBrokenStreams has an API server break each list that it sends as a stream: after one, the client asks for a list.
func TestBrokenStreams(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	s.Put(t, services, object("one", "1"))
	var last string
	var streams, repeated int
	s.Before = func(w http.ResponseWriter, r *http.Request) bool {
		had := last
		if last = r.URL.Query().Get("sendInitialEvents"); last != "true" {
			return false
		}
		if streams++; had == last {
			repeated++
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "status": "Failure", `+
			`"reason": "Expired", "code": 410, "message": "too old resource version"}}`)
		return true
	}
	w := startOf(t, s, Services)
	w.eventually(t, "first list", func() bool { return w.synced == 1 })
	s.Forget()
	s.Put(t, services, object("two", "1"))
	w.eventually(t, "another list", func() bool { return len(w.objects) == 2 })
	s.Stop()
	testkit.Check(t, streams > 0 && repeated == 0, "%d of %d streams were asked for again at once", repeated, streams)
}

// TestFailing reports once for all kinds why they cannot be read, and once that they can be read again.
func TestFailing(t *testing.T) {
	s := kubetest.Start(t)
	deny := func(resource string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprintf(w,
				`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
"message": "%s is forbidden: User \"joe\" cannot list resource"}`, resource)
		}
	}
	s.Handle(services, deny("services"))
	s.Handle(endpointSlices, deny("endpointslices"))
	w := start(t, s)
	const forbidden = `services is forbidden: User "joe" cannot list resource (apply the ClusterRoleBinding)`
	w.eventually(t, "forbidden", func() bool { return len(w.failing) == 1 && strings.HasSuffix(w.failing[0], forbidden) })
	s.Handle(services, nil)
	s.Handle(endpointSlices, nil)
	w.eventually(t, "allowed", func() bool { return w.failing[len(w.failing)-1] == "<nil>" })
	w.failing = nil
	s.Stop()
	w.eventually(t, "no server", func() bool { return len(w.failing) == 1 })
	if text := w.failing[0]; !strings.HasPrefix(text, "cannot read the cluster: http://127.0.0.1:") ||
		!strings.HasSuffix(text, "connect: connection refused") || strings.Count(text, "127.0.0.1") != 1 {
		t.Errorf("without a server: %s", text)
	}
}

// TestConnect refuses an invalid file.
func TestConnect(t *testing.T) {
	if c, err := Connect(kubetest.Start(t).Kubeconfig(t)); err != nil || len(c.Addresses()) != 1 ||
		!c.Addresses()[0].IsLoopback() {
		t.Errorf("a server at a loopback address: %v", err)
	}
	_, err := Connect("/nonexistent")
	testkit.Check(t, err != nil, "there is a client without a file")
}

// TestAddressOfName returns the address of a server with a name, once it has been reached.
func TestAddressOfName(t *testing.T) {
	path := kubetest.Start(t).Kubeconfig(t)
	text := testkit.Must(os.ReadFile(path))(t)
	testkit.Succeed(t, os.WriteFile(path, bytes.ReplaceAll(text, []byte("127.0.0.1"), []byte("localhost")), 0o600))
	c, err := Connect(path)
	testkit.Require(t, err == nil && len(c.Addresses()) == 0, "%v before a request: %v", c.Addresses(), err)
	_ = c.SetAvailable(t.Context(), "none") // the node does not exist
	all := c.Addresses()
	testkit.Check(t, len(all) == 1 && all[0].IsLoopback(), "addresses %v", all)
}

// TestConnectReadsFilesOnly refuses files that are endless, or would block.
func TestConnectReadsFilesOnly(t *testing.T) {
	t.Parallel()
	pipe, large := filepath.Join(t.TempDir(), "pipe"), filepath.Join(t.TempDir(), "large")
	testkit.Succeed(t, unix.Mkfifo(pipe, 0o600))
	testkit.Succeed(t, os.WriteFile(large, nil, 0o600))
	testkit.Succeed(t, os.Truncate(large, maxConfig+1))
	for file, want := range map[string]string{
		"/dev/zero": ": want a regular file", "/proc": ": want a regular file", pipe: ": want a regular file",
		large: ": more than 64 MiB", "/nonexistent": ": no such file",
	} {
		_, err := Connect(file)
		testkit.Check(t, err != nil && err.Error() == "--kubeconfig "+file+want, "%s: %v", file, err)
	}
}

// TestConnectInCluster names the fault of the API server's address in the pod.
func TestConnectInCluster(t *testing.T) {
	for host, want := range map[string]string{
		"":                        "the address of the API server is missing: apiServer.host of the chart, ",
		"API_SERVER":              "the address of the API server is missing: apiServer.host of the chart, ",
		"https://192.0.2.1:6443/": "KUBERNETES_SERVICE_HOST=https://192.0.2.1:6443/: want an address or a name",
	} {
		t.Setenv("KUBERNETES_SERVICE_HOST", host)
		if _, err := Connect(""); err == nil || !strings.HasPrefix(err.Error(), "connect to Kubernetes: "+want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", host, err)
		}
	}
}

// TestSilentServer has an API server accept requests and not answer: this is reported. Once it answers, all is read.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	s.Put(t, services, object("one", "1"))
	s.Handle(services, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	c := testkit.Must(Connect(s.Kubeconfig(t)))(t)
	at := c.typed.(*rest.RESTClient).Client.Transport
	for {
		wrapper, ok := at.(utilnet.RoundTripperWrapper)
		if !ok {
			break
		}
		at = wrapper.WrappedRoundTripper()
	}
	transport := at.(*http.Transport)
	wait := transport.ResponseHeaderTimeout
	testkit.Check(t, wait == answerWithin, "an answer is waited for for %s, want %s", wait, answerWithin)
	transport.ResponseHeaderTimeout = 100 * time.Millisecond
	w := watching(t, c, Services)
	w.eventually(t, "told", func() bool {
		return len(w.failing) == 1 && strings.HasSuffix(w.failing[0], "net/http: timeout awaiting response headers")
	})
	s.Handle(services, nil)
	w.eventually(t, "read", func() bool { return w.synced == 1 && w.failing[len(w.failing)-1] == "<nil>" })
}

// TestStalled has an API server, or a proxy, send the head of a list and nothing more: this is reported. Once it
// answers, all is read. A watch that is silent beyond its time ends.
func TestStalled(t *testing.T) {
	t.Parallel()
	s := kubetest.Start(t)
	s.Put(t, services, object("one", "1"))
	s.Handle(services, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") == "" {
			_, _ = w.Write([]byte(`{"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, ` +
				`"items": [`))
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	c := testkit.Must(Connect(s.Kubeconfig(t)))(t)
	testkit.Check(t, c.readWithin == readWithin && c.watchBeyond == watchBeyond,
		"a list may take %s, and a watch %s more", c.readWithin, c.watchBeyond)
	c.watchBeyond = time.Second
	silent := &store{watcher: &watcher{}, kind: Services}
	none := int64(0)
	w := testkit.Must(c.list(silent).WatchFuncWithContext(t.Context(),
		metav1.ListOptions{TimeoutSeconds: &none}))(t)
	defer w.Stop()
	select {
	case <-w.ResultChan():
	case <-time.After(30 * time.Second):
		t.Error("a silent watch stays open")
	}
	c = testkit.Must(Connect(s.Kubeconfig(t)))(t)
	c.readWithin = 5 * time.Second
	all := watching(t, c, Services)
	all.eventually(t, "told", func() bool {
		return len(all.failing) == 1 && strings.HasSuffix(all.failing[0], "context deadline exceeded")
	})
	s.Handle(services, nil)
	all.eventually(t, "read", func() bool { return all.synced == 1 && all.failing[len(all.failing)-1] == "<nil>" })
}
