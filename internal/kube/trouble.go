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

// gather is how long errors must stay the same before they are reported: most affect all kinds, one after the other.
const gather = time.Second

// trouble stores why kinds cannot be read.
type trouble struct {
	mu    sync.Mutex
	host  string
	kinds []Kind
	of    map[string]error // by resource
}

// note stores the result of a request for a kind.
func (t *trouble) note(ctx context.Context, k Kind, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil:
		delete(t.of, k.Resource)
	case ctx.Err() == nil:
		t.of[k.Resource] = err
	}
}

// report reports a new error, or that the error is gone, until the context ends.
func (t *trouble) report(ctx context.Context, tell func(error)) {
	ticker := time.NewTicker(gather)
	defer ticker.Stop()
	for said, last := "", ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now, text := t.err(), ""
		if now != nil {
			text = now.Error()
		}
		if text == last && text != said {
			said = text
			tell(now)
		}
		last = text
	}
}

// user matches the user in an answer of the API server: `services is forbidden: User "joe" cannot list resource ...`.
var user = regexp.MustCompile(`User "([^"]*)"`)

// err returns the error in one line; nil if all kinds can be read.
func (t *trouble) err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
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

// cause returns the error without the request, which differs each time.
func cause(err error) error {
	if request := (*url.Error)(nil); errors.As(err, &request) {
		err = request.Err
	}
	if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
		err = dial.Err
	}
	return err
}
