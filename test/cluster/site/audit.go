// SPDX-License-Identifier: Apache-2.0

package site

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
)

// auditFlags returns flags of kube-apiserver by which it logs the requests of proxies, and
// the path of the log. Files are written into dir.
func auditFlags(dir string) (flags []string, log string, err error) {
	policy, log := filepath.Join(dir, "audit-policy.yaml"), filepath.Join(dir, "audit.log")
	rules := fmt.Sprintf(`{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
		"rules": [{"level": "Metadata", "users": ["system:serviceaccount:%s:%s"]}]}`, proxyNamespace, proxyAccount)
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + log}, log, os.WriteFile(policy, []byte(rules), 0o600)
}

// Request is a request of a proxy that was answered.
type Request struct {
	Verb     string // as RBAC has it
	Resource string
	Query    url.Values
	Code     int // of the answer
}

// Requests returns the requests of proxies so far.
func (p *Plane) Requests() (all []Request, err error) {
	text, err := os.ReadFile(p.auditLog)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}                       // a watch has an event at its start and one at its end
	text = text[:bytes.LastIndexByte(text, '\n')+1] // the last line may be incomplete
	for line := range bytes.Lines(text) {
		var event struct {
			AuditID, Verb, RequestURI string
			ObjectRef                 struct{ Resource string }
			ResponseStatus            struct{ Code int }
		}
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("%s: %w", p.auditLog, err)
		}
		if seen[event.AuditID] {
			continue
		}
		seen[event.AuditID] = true
		uri, err := url.Parse(event.RequestURI)
		if err != nil {
			return nil, err
		}
		all = append(all, Request{event.Verb, event.ObjectRef.Resource, uri.Query(), event.ResponseStatus.Code})
	}
	return all, nil
}
