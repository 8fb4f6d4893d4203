// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"mustang/internal/document"
)

// Calls are what a watch calls, none after its end.
type Calls struct {
	// On is called for each object, and again whenever one changes or goes, one call after the other.
	On func(Event)
	// Synced is called once, when On has had all objects that there were at the begin.
	Synced func()
	// Installed returns how many objects of a kind the caller has in force from before; nil: none. A first list that is
	// empty is not believed for a minute then.
	Installed func(Kind) int
	// Failing is called with why kinds cannot be read, in one line, and with nil once all can be again.
	Failing func(error)
}

// After an error a request is made again: soon at first, and twice as late each time that there is one.
const (
	firstRetry = time.Second / 2
	lastRetry  = 30 * time.Second
)

// watchFor is how long a watch stays open at least, and at most twice as long.
const watchFor = 5 * time.Minute

// Watch calls for the objects of the kinds until the context ends. While the API server cannot be reached, it tries
// again, at most once in 30 seconds, and objects stay as they are.
func (c *Client) Watch(ctx context.Context, kinds []Kind, calls Calls) {
	w := &watcher{Calls: calls, client: c, trouble: &trouble{host: c.host, kinds: kinds, of: map[string]error{}}, missing: len(kinds)}
	var all sync.WaitGroup
	all.Go(func() { w.report(ctx, calls.Failing) })
	for _, kind := range kinds {
		all.Go(func() { (&follower{watcher: w, kind: kind, names: map[name]int{}, version: "0"}).run(ctx) })
	}
	all.Wait()
}

// watcher is one call of Watch.
type watcher struct {
	Calls
	*trouble
	client  *Client
	calling sync.Mutex // one call after the other
	missing int        // kinds without a first list
}

// follower follows the objects of a kind. It keeps their names alone.
type follower struct {
	*watcher
	kind, at Kind         // at is the kind as the cluster serves it
	names    map[name]int // the list that had an object last
	round    int          // numbers lists
	listed   bool
	version  string    // what has been read
	empty    time.Time // since when lists have been empty though objects are known
}

type name struct{ namespace, name string }

// run lists the objects, then watches them, until the context ends. It lists them again once the API server refuses a watch.
func (f *follower) run(ctx context.Context) {
	retry, listing := firstRetry, true
	for ctx.Err() == nil {
		begin, listed := time.Now(), listing
		var err error
		if listing {
			err = f.list(ctx)
			listing = err != nil || f.at.Version == ""
		} else {
			err = f.watch(ctx)
			listing = err != nil && !errors.As(err, new(*url.Error))
		}
		switch {
		case err == nil && listed && !listing: // there is a definition
		case !listed && time.Since(begin) > time.Second: // it was a watch
			retry = firstRetry
		case err == nil && !listing:
			retry = firstRetry
			f.rest(ctx, retry)
		default:
			f.rest(ctx, retry)
			retry = min(2*retry, lastRetry)
		}
	}
}

// rest waits for a time, or half of it: agents of all nodes wait at once.
func (f *follower) rest(ctx context.Context, most time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(most/2 + rand.N(most/2)):
	}
}

// list hands out all objects, one while the next is read, and that those which the list has not are gone. A list of a large
// cluster has tens of megabytes, and several times that once it is parsed.
func (f *follower) list(ctx context.Context) (err error) {
	bounded, cancel := context.WithTimeout(ctx, f.client.readWithin)
	defer cancel()
	f.round++
	n := 0
	if f.at, err = f.client.served(bounded, f.kind); err == nil {
		n, err = f.read(bounded)
	}
	if undefined := errors.Is(err, errUndefined); undefined || err == nil && n == 0 {
		err = f.doubt(undefined)
	} else if err != nil {
		f.empty = time.Time{}
	}
	f.note(ctx, f.kind, err)
	if err != nil {
		f.version = ""
		return err
	}
	f.replace()
	return nil
}

// replace hands out which known objects the last list has not.
func (f *follower) replace() {
	f.calling.Lock()
	defer f.calling.Unlock()
	for n, round := range f.names {
		if round != f.round {
			delete(f.names, n)
			f.On(Event{Kind: f.kind, Namespace: n.namespace, Name: n.name})
		}
	}
	f.empty = time.Time{}
	if f.listed {
		return
	}
	f.listed = true
	if f.missing--; f.missing == 0 {
		f.Synced()
	}
}

// read reads a list, and returns how many objects it has. The first may be as old as what the API server has in memory.
func (f *follower) read(ctx context.Context) (n int, err error) {
	body, err := f.open(ctx, metav1.ListOptions{ResourceVersion: f.version})
	if err != nil {
		return 0, err
	}
	defer body.Close()
	version, err := eachItem(body, f.kind, func(item jsontext.Value) error {
		n++
		return f.put(item, "ADDED")
	})
	if err != nil {
		return 0, fmt.Errorf("list of %s: %w", f.kind.Resource, err)
	}
	f.version = version
	return n, nil
}

// watch hands out what changes, until the watch ends; an error from then on is none.
func (f *follower) watch(ctx context.Context) error {
	seconds := int64((watchFor + rand.N(watchFor)).Seconds())
	bounded, cancel := context.WithTimeout(ctx, 2*watchFor+f.client.watchBeyond)
	defer cancel()
	body, err := f.open(bounded, metav1.ListOptions{
		Watch: true, AllowWatchBookmarks: true, ResourceVersion: f.version, TimeoutSeconds: &seconds,
	})
	if !apierrors.IsNotFound(err) && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) { // a list follows, and tells
		f.note(ctx, f.kind, err)
	}
	if err != nil {
		return err
	}
	defer body.Close()
	for d := jsontext.NewDecoder(body); ; {
		var e struct {
			Type   string         `json:"type"`
			Object jsontext.Value `json:"object"`
		}
		if err := json.UnmarshalDecode(d, &e); err != nil {
			if errors.As(err, new(*jsontext.SyntacticError)) && !errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, new(*json.SemanticError)) {
				return err
			}
			return nil
		}
		if e.Type == "ERROR" {
			var s metav1.Status
			_ = document.Decode(e.Object, &s) // what else it is is an error too
			return &apierrors.StatusError{ErrStatus: s}
		}
		if err := f.put(e.Object, e.Type); err != nil {
			return err
		}
	}
}

// open sends a request for a list or a watch.
func (f *follower) open(ctx context.Context, o metav1.ListOptions) (io.ReadCloser, error) {
	o.LabelSelector = f.kind.Labels
	v1 := schema.GroupVersion{Version: "v1"}
	return f.client.rest.Get().AbsPath(f.at.path()).SpecificallyVersionedParams(&o, metav1.ParameterCodec, v1).Stream(ctx)
}

// put notes and hands out what an event of a watch says of an object.
func (f *follower) put(object jsontext.Value, event string) error {
	var o document.Object
	if err := document.Decode(object, &o); err != nil {
		return err
	}
	n := name{o.Metadata.Namespace, o.Metadata.Name}
	f.version = o.Metadata.Version
	switch {
	case event == "BOOKMARK":
		return nil
	case n.name == "":
		return errNoList
	case event == "DELETED":
		delete(f.names, n)
		object = nil
	default:
		f.names[n] = f.round
	}
	f.calling.Lock()
	defer f.calling.Unlock()
	f.On(Event{f.kind, n.namespace, n.name, object})
	return nil
}

// errNoList is the error of an answer that is no list: what it lacks is not gone.
var errNoList = errors.New("not a list")

// eachItem reads a list, returns its version, and calls a function for each item, which has the kind and the version that the list names: items are
// without. What is not said to be a list of the kind, and to have items, is none: something before the API server has answered.
func eachItem(r io.Reader, k Kind, item func(jsontext.Value) error) (resourceVersion string, err error) {
	d := jsontext.NewDecoder(r)
	if err := open(d, '{'); err != nil {
		return "", err
	}
	var kind, version string
	var head metav1.ListMeta
	listed := false
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return "", err
		}
		switch name.String() {
		case "kind":
			err = json.UnmarshalDecode(d, &kind)
		case "apiVersion":
			err = json.UnmarshalDecode(d, &version)
		case "metadata":
			err = json.UnmarshalDecode(d, &head)
		case "items":
			listed = true
			if kind != "" && !k.lists(kind) { // lists of custom resources name it after the items
				return "", errNoList
			}
			err = items(d, strings.TrimSuffix(kind, "List"), version, item)
		default:
			err = d.SkipValue()
		}
		if err != nil {
			return "", err
		}
	}
	if !listed || !k.lists(kind) || head.Continue != "" {
		return "", errNoList
	}
	return head.ResourceVersion, nil
}

func items(d *jsontext.Decoder, kind, version string, item func(jsontext.Value) error) error {
	if d.PeekKind() == 'n' { // Go writes an empty list so
		return d.SkipValue()
	}
	if err := open(d, '['); err != nil {
		return err
	}
	head := fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,`, kind, version)
	for d.PeekKind() != ']' {
		value, err := d.ReadValue()
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(value, []byte(`{"metadata"`)) { // it names its kind
			value = bytes.Clone(value)
		} else {
			value = append(bytes.Clone(head), value[1:]...)
		}
		if err := item(value); err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return err
}

func open(d *jsontext.Decoder, bracket jsontext.Kind) error {
	token, err := d.ReadToken()
	if err == nil && token.Kind() != bracket {
		err = errNoList
	}
	return err
}

// lists reports whether a list of that name is one of the kind.
func (k Kind) lists(list string) bool {
	one, is := strings.CutSuffix(list, "List")
	plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: one})
	return is && plural.Resource == k.Resource
}

// path returns the path of a kind's list.
func (k Kind) path() string {
	if k.Group == "" {
		return "/api/" + k.Version + "/" + k.Resource
	}
	return "/apis/" + k.Group + "/" + k.Version + "/" + k.Resource
}
