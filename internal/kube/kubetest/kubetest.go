// SPDX-License-Identifier: Apache-2.0

// Package kubetest is an API server for tests: it lists and watches objects that a test puts into it.
package kubetest

import (
	"cmp"
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
	http *httptest.Server
	// exec and created are those of Exec and Created.
	exec    runner
	created func(list string, object map[string]any)

	mu      sync.Mutex
	version int
	objects map[string]map[string]any // by the path of a list, and by namespace and name
	events  map[string][]event
	changed chan struct{} // closed at the next change
	oldest  int           // versions before are gone
	others  map[string]http.Handler

	once    sync.Once
	stopped chan struct{}
}

type event struct {
	version int
	data    []byte
}

// Start starts a server that ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{objects: map[string]map[string]any{}, events: map[string][]event{}, changed: make(chan struct{}), stopped: make(chan struct{})}
	s.http = httptest.NewServer(s)
	t.Cleanup(s.Stop)
	return s
}

// Handle has something else answer at a path: logs of pods, or a command there; nil: nothing else any more.
func (s *Server) Handle(path string, handler http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.others == nil {
		s.others = map[string]http.Handler{}
	}
	s.others[path] = handler
}

// Stop ends the server, and the watches of clients that are quick to come back.
func (s *Server) Stop() {
	s.once.Do(func() { close(s.stopped) })
	s.http.CloseClientConnections()
	s.http.Close()
}

// Kubeconfig returns the path of a file to connect with.
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
	s.change(list, o, "")
}

// Delete deletes an object.
func (s *Server) Delete(list, namespace, name string) {
	meta := map[string]any{"name": name}
	if namespace != "" {
		meta["namespace"] = namespace
	}
	s.change(list, map[string]any{"metadata": meta}, "DELETED")
}

func (s *Server) change(list string, o map[string]any, kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	meta := o["metadata"].(map[string]any)
	key := fmt.Sprint(meta["namespace"], "/", meta["name"])
	if s.objects[list] == nil {
		s.objects[list] = map[string]any{}
	}
	old, had := s.objects[list][key]
	switch {
	case kind != "":
		if !had {
			return
		}
		o = old.(map[string]any)
		delete(s.objects[list], key)
	case had:
		kind = "MODIFIED"
	default:
		kind = "ADDED"
	}
	s.version++
	o["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(s.version)
	if kind != "DELETED" {
		s.objects[list][key] = o
	}
	data, _ := json.Marshal(map[string]any{"type": kind, "object": o})
	s.events[list] = append(s.events[list], event{s.version, append(data, '\n')})
	close(s.changed)
	s.changed = make(chan struct{})
}

// Forget ends all watches, and forgets what has changed: who watches has to list again.
func (s *Server) Forget() {
	s.mu.Lock()
	s.version++
	s.oldest = s.version
	s.events = map[string][]event{}
	s.mu.Unlock()
	s.http.CloseClientConnections()
}

// patch replaces the conditions of a Node, as a patch of its status by one who sets all of them.
func (s *Server) patch(w http.ResponseWriter, r *http.Request) {
	list, name, ok := strings.Cut(strings.TrimSuffix(r.URL.Path, "/status"), "/nodes/")
	var patch map[string]any
	if err := json.NewDecoder(r.Body).Decode(&patch); !ok || err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	list += "/nodes"
	s.mu.Lock()
	had, known := s.objects[list]["<nil>/"+name].(map[string]any)
	s.mu.Unlock()
	if !known {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	now, status := maps.Clone(had), map[string]any{}
	before, _ := had["status"].(map[string]any)
	maps.Copy(status, before)
	maps.Copy(status, patch["status"].(map[string]any))
	now["metadata"], now["status"] = maps.Clone(had["metadata"].(map[string]any)), status
	s.change(list, now, "")
	_ = json.NewEncoder(w).Encode(now)
}

// Object returns an object in JSON; empty if there is none.
func (s *Server) Object(t testing.TB, list, namespace, name string) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[list][cmp.Or(namespace, "<nil>")+"/"+name]
	if !ok {
		return ""
	}
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Objects returns all objects of a list in JSON.
func (s *Server) Objects(t testing.TB, list string) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	data, err := json.Marshal(slices.Collect(maps.Values(s.objects[list])))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// list lists the objects of a list whose keys begin so by name, in pages if the client asks for such, as an API server without a cache.
func (s *Server) list(w http.ResponseWriter, r *http.Request, list, prefix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	objects := s.objects[list]
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(objects)), func(key string) bool { return !strings.HasPrefix(key, prefix) })
	meta := map[string]any{"resourceVersion": strconv.Itoa(s.version)}
	if from := r.URL.Query().Get("continue"); from != "" {
		i, _ := slices.BinarySearch(names, from)
		names = names[i:]
	}
	if limit, _ := strconv.Atoi(r.URL.Query().Get("limit")); limit > 0 && limit < len(names) {
		meta["continue"], meta["remainingItemCount"] = names[limit], len(names)-limit
		names = names[:limit]
	}
	items := make([]any, 0, len(names))
	for _, name := range names {
		items = append(items, objects[name])
	}
	resource := list[strings.LastIndexByte(list, '/')+1:]
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": kinds[resource] + "List", "apiVersion": "v1", "metadata": meta, "items": items})
}

// kinds are the kinds of the objects that agents list, by resource.
var kinds = map[string]string{
	"nodes": "Node", "namespaces": "Namespace", "pods": "Pod", "services": "Service", "endpointslices": "EndpointSlice", "networkpolicies": "NetworkPolicy",
	"clusternetworkpolicies": "ClusterNetworkPolicy",
}

// namespaced is the path of objects in a namespace, and of one there.
var namespaced = regexp.MustCompile(`^(/api/v1|/apis/[^/]+/[^/]+)/namespaces/([^/]+)/([^/]+)(?:/([^/]+))?$`)

// fail answers as an API server that has no object of a name, or fails otherwise.
func fail(w http.ResponseWriter, code int, reason, name string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "status": "Failure", "details": map[string]any{"name": name},
	})
}

// one gets an object in a namespace, or creates one.
func (s *Server) one(w http.ResponseWriter, r *http.Request, path []string) {
	list, key := path[1]+"/"+path[3], path[2]+"/"+path[4]
	var o map[string]any
	if r.Method == http.MethodPost {
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			fail(w, http.StatusBadRequest, "BadRequest", path[4])
			return
		}
		key += fmt.Sprint(o["metadata"].(map[string]any)["name"])
	}
	s.mu.Lock()
	had, known := s.objects[list][key]
	s.mu.Unlock()
	switch {
	case r.Method == http.MethodPost && known:
		fail(w, http.StatusConflict, "AlreadyExists", path[4])
	case r.Method == http.MethodPost:
		if s.created != nil {
			s.created(list, o)
		}
		s.change(list, o, "")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(o)
	case !known:
		fail(w, http.StatusNotFound, "NotFound", path[4])
	default:
		_ = json.NewEncoder(w).Encode(had)
	}
}

// ServeHTTP lists, watches, gets and creates objects, patches the status of Nodes, and runs commands in pods.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	other := s.others[r.URL.Path]
	s.mu.Unlock()
	if other != nil {
		other.ServeHTTP(w, r)
		return
	}
	if path, ok := strings.CutSuffix(r.URL.Path, "/exec"); ok {
		s.serveExec(w, r, filepath.Base(path))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if path := namespaced.FindStringSubmatch(r.URL.Path); path != nil && path[4] == "" && r.Method == http.MethodGet {
		s.list(w, r, path[1]+"/"+path[3], path[2]+"/")
		return
	} else if path != nil {
		s.one(w, r, path)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/") || r.URL.Path == "/api/v1/namespaces" && r.Method == http.MethodPost {
		s.space(w, r)
		return
	}
	if name, ok := strings.CutPrefix(r.URL.Path, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"); ok {
		s.define(w, name)
		return
	}
	if r.Method == http.MethodPatch {
		s.patch(w, r)
		return
	}
	if r.URL.Query().Get("watch") == "" {
		s.list(w, r, r.URL.Path, "")
		return
	}
	seen, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	for begun := false; ; begun = true {
		s.mu.Lock()
		gone, changed := seen < s.oldest, s.changed
		var news []event
		for _, e := range s.events[r.URL.Path] {
			if e.version > seen {
				news = append(news, e)
			}
		}
		s.mu.Unlock()
		if gone && begun {
			return
		}
		if gone {
			fail(w, http.StatusGone, "Expired", "")
			return
		}
		for _, e := range news {
			seen = e.version
			_, _ = w.Write(e.data)
		}
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-s.stopped:
			return
		case <-r.Context().Done():
			return
		}
	}
}
