// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
)

// narrow has fewer addresses than there are at once who want one.
var narrow = parseSets("10.1.0.0/24 start=10.1.0.10 end=10.1.0.29", "fd00::/64")

// churn reserves and releases as many at once do. Each address is witnessed by a directory of its name, beside the
// store's, which cannot be made twice.
func churn(s *Store, who string) error {
	var group errgroup.Group
	for i := range 25 {
		group.Go(func() error {
			o := pod(fmt.Sprintf("p%s-%d", who, i))
			for range 8 {
				if err := once(s, o); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func once(s *Store, o Owner) error {
	leases, err := s.Reserve(o, narrow, nil)
	var full *FullError
	if errors.As(err, &full) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, l := range leases {
		if err := os.Mkdir(filepath.Join(s.dir+".held", l.Address.String()), 0o700); err != nil {
			return fmt.Errorf("given out twice: %w", err)
		}
	}
	for _, l := range leases {
		if err := os.Remove(filepath.Join(s.dir+".held", l.Address.String())); err != nil {
			return err
		}
	}
	freed, err := s.Release(o)
	if err == nil && len(freed) != len(leases) {
		err = fmt.Errorf("%s had %v and released %v", o, leases, freed)
	}
	return err
}

// TestProcesses has processes with many goroutines each at one store.
func TestProcesses(t *testing.T) {
	s := open(t)
	if err := os.Mkdir(s.dir+".held", 0o700); err != nil {
		t.Fatal(err)
	}
	var group errgroup.Group
	for i := range 4 {
		group.Go(func() error {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), childJob+"=churn", childDir+"="+s.dir, fmt.Sprintf("%s=p%d", childStep, i))
			if output, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, output)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	want(t, "files at last", files(t, s), "")
}

// TestHundred has 100 ask at once where there is room for 60: 60 get one each.
func TestHundred(t *testing.T) {
	s := open(t)
	sets := parseSets("10.1.0.0/24 start=10.1.0.10 end=10.1.0.69")
	var mutex sync.Mutex
	got, refused := map[string]bool{}, 0
	var group errgroup.Group
	for i := range 100 {
		group.Go(func() error {
			leases, err := openAt(t, s.dir).Reserve(pod(fmt.Sprint("p", i)), sets, nil)
			mutex.Lock()
			defer mutex.Unlock()
			var full *FullError
			if errors.As(err, &full) {
				refused++
				return nil
			}
			if err == nil {
				got[leases[0].Address.String()] = true
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if len(got) != 60 || refused != 40 {
		t.Errorf("%d addresses, %d refused", len(got), refused)
	}
	want(t, "all are leased", fmt.Sprint(len(strings.Fields(leased(t, s)))), "60")
}

// TestOneOwner has 20 ask for the same owner at once: one of them gets it.
func TestOneOwner(t *testing.T) {
	s := open(t)
	var group errgroup.Group
	errs := make([]error, 20)
	for i := range errs {
		group.Go(func() error {
			_, errs[i] = s.Reserve(pod("a"), dual, nil)
			return nil
		})
	}
	_ = group.Wait()
	won := 0
	for _, err := range errs {
		var has *HasLeasesError
		if err == nil {
			won++
		} else if !errors.As(err, &has) {
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d got leases", won)
	}
	want(t, "files", files(t, s), "10.1.0.2 a@eth0 fd00::2")
}
