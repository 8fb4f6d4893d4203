// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// gather is how long errors are gathered before they are told: most concern all kinds at once.
const gather = time.Second

// trouble is why kinds cannot be read.
type trouble struct {
	mu    sync.Mutex
	host  string
	kinds []Kind
	of    map[string]error // by resource
	said  string
	timer *time.Timer
	tell  func(error)
}

// note notes how a request for a kind went.
func (t *trouble) note(ctx context.Context, k Kind, err error) {
	if ctx.Err() != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, had := t.of[k.Resource]
	if err == nil && !had {
		return
	}
	if err == nil {
		delete(t.of, k.Resource)
	} else {
		t.of[k.Resource] = err
	}
	if t.timer == nil {
		t.timer = time.AfterFunc(gather, t.report)
	}
}

// report tells what is wrong, if that is new, or that nothing is.
func (t *trouble) report() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = nil
	now, text := t.err(), ""
	if now != nil {
		text = now.Error()
	}
	if text != t.said && t.tell != nil {
		t.said = text
		t.tell(now)
	}
}

// stop ends it: it tells nothing more.
func (t *trouble) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tell = nil
}

// user is that of an answer of the API server: `services is forbidden: User "joe" cannot list resource ...`.
var user = regexp.MustCompile(`User "([^"]*)"`)

// err says what is wrong in one line.
func (t *trouble) err() error {
	var forbidden []string
	who := "this user"
	for _, k := range t.kinds {
		err := t.of[k.Resource]
		switch {
		case err == nil:
		case apierrors.IsForbidden(err):
			forbidden = append(forbidden, k.Resource)
			if found := user.FindStringSubmatch(err.Error()); found != nil {
				who = found[1]
			}
		default:
			return fmt.Errorf("cannot read the cluster: %s: %w", t.host, cause(err))
		}
	}
	if len(forbidden) == 0 {
		return nil
	}
	const named = 2
	list := strings.Join(forbidden, " and ")
	if len(forbidden) > named {
		list = fmt.Sprintf("%s and %d more", strings.Join(forbidden[:named], ", "), len(forbidden)-named)
	}
	return fmt.Errorf("cannot list %s: forbidden for %s (apply the ClusterRoleBinding)", list, who)
}

// cause returns the error without the request, of which each has another.
func cause(err error) error {
	if request := (*url.Error)(nil); errors.As(err, &request) {
		err = request.Err
	}
	if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
		err = dial.Err
	}
	return err
}
