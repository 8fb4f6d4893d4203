// SPDX-License-Identifier: Apache-2.0

// Package kubetest is an API server for tests, with the objects that a test puts into it.
package kubetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Server is an API server.
type Server struct {
	// Before is called with each request, one at a time, and reports whether it has answered; nil: it is not called.
	Before func(http.ResponseWriter, *http.Request) bool
	// ListsOnly is set before the first request if the server cannot send a list as a stream, as those before 1.34.
	ListsOnly bool

	http    *httptest.Server
	exec    runner // the function given to Exec; created: to Created
	created func(list string, object map[string]any)

	mu      sync.Mutex
	version int
	objects map[string]map[string]any // by the path of a list, and by namespace and name
	events  map[string][]event
	changed chan struct{} // closed at the next change
	oldest  int           // versions before are gone
	others  map[string]http.Handler
	writing sync.Mutex // held by changes of clients: each checks the version that it changes

	once    sync.Once
	stopped chan struct{}
}

// Start starts a server that ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{objects: map[string]map[string]any{}, events: map[string][]event{}, changed: make(chan struct{}),
		stopped: make(chan struct{}), others: map[string]http.Handler{}}
	s.http = httptest.NewServer(s)
	t.Cleanup(s.Stop)
	return s
}

// Handle sets another handler for a path, such as logs of pods or a command there; nil removes it.
func (s *Server) Handle(path string, handler http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.others[path] = handler
}

// Stop ends the server and all watches, also of clients that reconnect quickly.
func (s *Server) Stop() {
	s.once.Do(func() { close(s.stopped) })
	s.http.CloseClientConnections()
	s.http.Close()
}

// Kubeconfig returns the path of a kubeconfig file for the server.
func (s *Server) Kubeconfig(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "test",
"contexts": [{"name": "test", "context": {"cluster": "test"}}], "clusters": [{"name": "test", "cluster": {"server": %q}}]}`, s.http.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Put stores an object in JSON in a list: "/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices".
func (s *Server) Put(t testing.TB, list, object string) {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(object), &o); err != nil {
		t.Fatal(err)
	}
	s.change(list, o, false)
}

// Delete deletes an object.
func (s *Server) Delete(list, namespace, name string) {
	s.change(list, map[string]any{"metadata": map[string]any{"namespace": namespace, "name": name}}, true)
}

func (s *Server) change(list string, o map[string]any, gone bool) (now map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	meta := o["metadata"].(map[string]any)
	namespace, _ := meta["namespace"].(string)
	key := fmt.Sprint(namespace, "/", meta["name"])
	if s.objects[list] == nil {
		s.objects[list] = map[string]any{}
	}
	old, had := s.objects[list][key]
	if gone && !had {
		return nil
	}
	s.version++
	e := event{version: s.version}
	e.was, _ = old.(map[string]any)
	if gone {
		delete(s.objects[list], key)
	} else {
		e.now = merged(o, map[string]any{"metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version)}})
		s.objects[list][key] = e.now
	}
	s.events[list] = append(s.events[list], e)
	close(s.changed)
	s.changed = make(chan struct{})
	return e.now
}

// Forget ends all watches, and forgets what has changed: clients have to list again.
func (s *Server) Forget() {
	s.mu.Lock()
	s.version++
	s.oldest = s.version
	s.events = map[string][]event{}
	s.mu.Unlock()
	s.http.CloseClientConnections()
}

// Object returns an object in JSON; empty if there is none.
func (s *Server) Object(list, namespace, name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.objects[list][namespace+"/"+name]; ok {
		return text(o)
	}
	return ""
}

// Objects returns all objects of a list in JSON.
func (s *Server) Objects(list string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return text(slices.Collect(maps.Values(s.objects[list])))
}

func text(value any) string {
	data, _ := json.Marshal(value) // objects come from JSON
	return string(data)
}

// list lists objects, of a namespace or all, by name, and in pages on request, like an API server without a cache.
func (s *Server) list(w http.ResponseWriter, r *http.Request, list, namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	query, objects := r.URL.Query(), s.objects[list]
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(objects)), func(key string) bool {
		return key < query.Get("continue") || namespace != "" && !strings.HasPrefix(key, namespace+"/") ||
			!selected(r, objects[key].(map[string]any))
	})
	meta := map[string]any{"resourceVersion": strconv.Itoa(s.version)}
	if limit, _ := strconv.Atoi(query.Get("limit")); limit > 0 && limit < len(names) {
		meta["continue"], meta["remainingItemCount"] = names[limit], len(names)-limit
		names = names[:limit]
	}
	items := make([]any, 0, len(names))
	for _, name := range names {
		items = append(items, objects[name])
	}
	kind, version := typeOf(list)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": kind + "List", "apiVersion": version, "metadata": meta,
		"items": items})
}

var kinds = map[string]string{
	"nodes": "Node", "namespaces": "Namespace", "pods": "Pod", "services": "Service", "endpointslices": "EndpointSlice",
	"networkpolicies": "NetworkPolicy", "clusternetworkpolicies": "ClusterNetworkPolicy",
}

// typeOf returns the kind of the objects of a list, and their version.
func typeOf(list string) (kind, version string) {
	at := strings.LastIndexByte(list, '/')
	return kinds[list[at+1:]], strings.TrimPrefix(strings.TrimPrefix(list[:at], "/apis/"), "/api/")
}

func fail(w http.ResponseWriter, code int, reason, name string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason,
		"status": "Failure", "details": map[string]any{"name": name}})
}

// resource is the path of a list, with a namespace or without, or the path of an object or a part of it.
var resource = regexp.MustCompile(
	`^(/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/([^/]+))?/([^/]+)(?:/([^/]+))?(?:/([^/]+))?$`)

// ServeHTTP lists, watches, gets, creates, patches and deletes objects, and runs commands in pods.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	other, answered := s.others[r.URL.Path], s.Before != nil && s.Before(w, r)
	s.mu.Unlock()
	if answered {
		return
	}
	path := resource.FindStringSubmatch(r.URL.Path)
	switch {
	case other != nil:
		other.ServeHTTP(w, r)
		return
	case path == nil:
		fail(w, http.StatusNotFound, "NotFound", "")
		return
	case path[5] == "exec":
		s.serveExec(w, r, path[4])
		return
	}
	list, namespace, name := path[1]+"/"+path[3], path[2], path[4]
	w.Header().Set("Content-Type", "application/json")
	switch {
	case path[3] == "customresourcedefinitions":
		s.define(w, name)
	case name != "" || r.Method == http.MethodPost:
		s.one(w, r, list, namespace+"/"+name)
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r)
	default:
		s.list(w, r, list, namespace)
	}
}

// define answers with the definition of a kind, "things.example.org", at the versions that ever had objects.
func (s *Server) define(w http.ResponseWriter, name string) {
	var versions []any
	s.mu.Lock()
	for list := range s.objects {
		parts := strings.Split(list, "/") // of /apis/GROUP/VERSION/RESOURCE
		if len(parts) == 5 && parts[4]+"."+parts[2] == name {
			versions = append(versions, map[string]any{"name": parts[3], "served": true})
		}
	}
	s.mu.Unlock()
	if versions == nil {
		fail(w, http.StatusNotFound, "NotFound", name)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "CustomResourceDefinition",
		"apiVersion": "apiextensions.k8s.io/v1", "spec": map[string]any{"versions": versions}})
}
