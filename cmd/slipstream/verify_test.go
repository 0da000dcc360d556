// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kerneltest"
)

// TestVerify makes sure that verify finds nothing where all is well, and names the
// Service of what somebody else has deleted.
func TestVerify(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	s := newSite(t)
	s.save("web.yaml", web(0, 1))
	p := s.run()
	s.untilReached("web-0", "web-1")
	if out, err := s.verify(); err != nil || out != "" {
		t.Errorf("error %v, output:\n%s", err, out)
	}
	p.Kill() // it would heal
	<-p.Done()
	if _, err := s.node.Run(t.Context(), "nft", "flush", "map", "ip", "slipstream", "endpoints"); err != nil {
		t.Fatal(err)
	}
	out, err := s.verify()
	if err == nil || !strings.Contains(out, "- Service default/web") || !strings.Contains(out, "+ Service default/web") {
		t.Errorf("error %v, output:\n%s", err, out)
	}
	t.Log(out)
}

// verify runs slipstream verify on the node.
func (s *site) verify() (string, error) {
	var out bytes.Buffer
	cmd := s.command("verify", "--manifests", s.dir, "--hostname-override", "n1")
	cmd.Stdout = &out
	p, err := s.node.Start(cmd)
	s.check(err)
	err = p.Wait()
	return out.String(), err
}
