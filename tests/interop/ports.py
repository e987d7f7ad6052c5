#!/usr/bin/env python3
"""The programs of examples/ports/ in PyTorch, with the same initial values and the same random numbers.

ports.py write FILE          records the losses of their first steps (needs torch): tests/golden/ports.json
ports.py check FILE BUILD    compares ours with that record, and trains each program to a given loss; ends with
                             "N passed, N failed"
"""
import json
import math
import os
import pathlib
import re
import subprocess
import sys

STEPS = 20
TRAINED = {  # the mean loss over the last tenth of the steps must be lower
    "vae": 225, "mnist_rnn": 0.4, "super_resolution": 0.02, "siamese": 0.15, "time_series": 1e-3, "flow": 1.5, "dcgan": 1.3, "wgan_gp": -2, "ddpm": 0.6, "unet": 0.25,
    "reinforce": -100, "ppo": -60, "translation": 0.5, "speech": 0.2, "word_language_model": 0.65, "word_language_model --model gru": 0.65, "word_language_model --model transformer": 0.65,
}


def number(key, count):
    import numpy as np

    x = np.sin(np.arange(count) * 12.9898 + key * 78.233 + 1) * 43758.5453
    return x - np.floor(x)


class Run:
    def __init__(self):
        self.sampled = 0

    def start(self, *modules):
        import torch

        for module in modules:
            for name, p in module.named_parameters():
                if p.dim() < 2 and name.endswith("weight"):
                    continue
                ours = name.replace("in_proj_", "in_proj.")
                key = float(sum(ord(c) * (i + 1) for i, c in enumerate(ours)))
                fan = 100 if p.dim() < 2 else p.numel() // p.shape[0]
                p.data = torch.tensor((2 * number(key, p.numel()) - 1) / math.sqrt(fan), dtype=torch.float32).reshape(p.shape)

    def module(self, **parts):
        """A module with these parts and initial values."""
        from torch import nn

        made = nn.Module()
        for name, part in parts.items():
            made.add_module(name, part)
        self.start(made)
        return made

    def uniform(self, *shape):
        import torch

        self.sampled += 1
        return torch.tensor(number(self.sampled, math.prod(shape)), dtype=torch.float32).reshape(shape)

    def normal(self, *shape):
        import numpy as np
        import torch

        self.sampled += 1
        n = math.prod(shape)
        values = np.sqrt(-2 * np.log(1 - number(self.sampled, n))) * np.cos(2 * math.pi * number(self.sampled + 0.5, n))
        return torch.tensor(values, dtype=torch.float32).reshape(shape)

    def digits(self, count):
        import torch

        return self.uniform(count, 1, 28, 28), torch.arange(count) * 7 % 10


def programs():
    """{name: a function of a Run that returns the losses of the first steps}."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    def trained(model, optimizer, loss_of, clip=math.inf):
        losses = []
        for _ in range(STEPS):
            loss = loss_of()
            optimizer.zero_grad()
            loss.backward()
            if clip < math.inf:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            losses.append(loss.item())
        return losses

    def vae(run):
        m = run.module(fc1=nn.Linear(784, 128), fc21=nn.Linear(128, 8), fc22=nn.Linear(128, 8), fc3=nn.Linear(8, 128), fc4=nn.Linear(128, 784))

        def loss():
            x = run.digits(32)[0].reshape(32, 784)
            h = F.relu(m.fc1(x))
            mean, log_variance = m.fc21(h), m.fc22(h)
            z = mean + run.normal(32, 8) * torch.exp(0.5 * log_variance)
            reconstruction = F.binary_cross_entropy_with_logits(m.fc4(F.relu(m.fc3(z))), x, reduction="sum")
            return (reconstruction - 0.5 * torch.sum(1 + log_variance - mean**2 - log_variance.exp())) / 32

        return trained(m, torch.optim.Adam(m.parameters(), 1e-3), loss)

    def mnist_rnn(run):
        m = run.module(lstm=nn.LSTM(28, 64, batch_first=True), head=nn.Linear(64, 10))

        def loss():
            images, labels = run.digits(32)
            return F.cross_entropy(m.head(m.lstm(images.reshape(32, 28, 28))[1][0][0]), labels)

        return trained(m, torch.optim.Adam(m.parameters(), 3e-3), loss, clip=1)

    def super_resolution(run):
        m = run.module(conv1=nn.Conv2d(1, 16, 5, padding=2), conv2=nn.Conv2d(16, 16, 3, padding=1), conv3=nn.Conv2d(16, 4, 3, padding=1))

        def loss():
            large = run.digits(16)[0]
            return F.mse_loss(F.pixel_shuffle(m.conv3(F.relu(m.conv2(F.relu(m.conv1(F.avg_pool2d(large, 2)))))), 2), large)

        return trained(m, torch.optim.Adam(m.parameters(), 3e-3), loss)

    def siamese(run):
        m = run.module(conv1=nn.Conv2d(1, 8, 5, padding=2), conv2=nn.Conv2d(8, 16, 5, padding=2), head=nn.Linear(16 * 49, 16))

        def partners(labels, same):
            found = []
            for i in range(len(labels)):
                j = (i + 1) % len(labels)
                while j != i and (labels[j] == labels[i]) != same:
                    j = (j + 1) % len(labels)
                found.append(j)
            return found

        def loss():
            images, labels = run.digits(32)
            x = F.max_pool2d(F.relu(m.conv2(F.max_pool2d(F.relu(m.conv1(images)), 2))), 2)
            points, labels = m.head(x.flatten(1)), labels.tolist()
            return F.triplet_margin_loss(points, points[partners(labels, True)], points[partners(labels, False)])

        return trained(m, torch.optim.SGD(m.parameters(), 0.02, 0.9), loss)

    def time_series(run):
        starts = run.uniform(16).double()
        waves = torch.sin(torch.arange(61).double()[:, None] / 5 + 20 * starts[None])[..., None]
        m = run.module(lstm=nn.LSTM(1, 24, 2), linear=nn.Linear(24, 1))
        m.double()
        optimizer = torch.optim.LBFGS(m.parameters(), lr=0.8, max_iter=10, line_search_fn="strong_wolfe")

        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(m.linear(m.lstm(waves[:60])[0]), waves[1:])
            loss.backward()
            return loss

        return [optimizer.step(closure).item() for _ in range(8)]

    def flow(run):
        m = nn.Module()
        m.layers = nn.ModuleList()
        for _ in range(6):
            layer = nn.Module()
            layer.fc1, layer.fc2 = nn.Linear(1, 32), nn.Linear(32, 2)
            m.layers.append(layer)
        run.start(m)

        def loss():
            angle, noise = run.uniform(128, 1) * math.pi, run.normal(128, 2) * 0.1
            upper = (run.uniform(128, 1) > 0.5).float()
            sign = upper * 2 - 1
            x, grown = torch.cat([angle.cos() * sign + (1 - upper), angle.sin() * sign + (1 - upper) * 0.5], 1) + noise, 0
            for i, layer in enumerate(m.layers):
                kept, moved = x[:, i % 2 : i % 2 + 1], x[:, 1 - i % 2 : 2 - i % 2]
                both = layer.fc2(torch.tanh(layer.fc1(kept)))
                log_scale = torch.tanh(both[:, :1])
                made = moved * log_scale.exp() + both[:, 1:]
                x, grown = torch.cat([kept, made] if i % 2 == 0 else [made, kept], 1), grown + log_scale
            return -(grown - 0.5 * (x**2).sum(1, keepdim=True) - math.log(2 * math.pi)).mean()

        return trained(m, torch.optim.Adam(m.parameters(), 5e-3), loss)

    def adversarial(run, d, rate, betas, of_critic, of_maker):
        """The losses of a critic d of digits, against a generator. of_critic(real, made) and of_maker(made) are the losses of both."""
        g = nn.Module()
        g.up1, g.norm1 = nn.ConvTranspose2d(16, 32, 7, bias=False), nn.BatchNorm2d(32)
        g.up2, g.norm2 = nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16)
        g.up3 = nn.ConvTranspose2d(16, 1, 4, 2, 1, bias=False)
        run.start(g, d)
        makes, judges = (torch.optim.Adam(module.parameters(), rate, betas) for module in (g, d))
        losses = []
        for _ in range(STEPS):
            real = run.digits(16)[0] * 2 - 1
            made = torch.tanh(g.up3(F.relu(g.norm2(g.up2(F.relu(g.norm1(g.up1(run.normal(16, 16, 1, 1)))))))))
            loss = of_critic(real, made)
            judges.zero_grad()
            loss.backward()
            judges.step()
            makes.zero_grad()
            of_maker(made).backward()
            makes.step()
            losses.append(loss.item())
        return losses

    def dcgan(run):
        d = nn.Module()
        d.down1, d.down2, d.norm2, d.head = nn.Conv2d(1, 16, 4, 2, 1, bias=False), nn.Conv2d(16, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32), nn.Linear(32 * 49, 1)

        def judged(images, real):
            x = F.leaky_relu(d.norm2(d.down2(F.leaky_relu(d.down1(images), 0.2))), 0.2)
            scores = d.head(x.flatten(1)).flatten()
            return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(real)))

        return adversarial(run, d, 5e-4, (0.5, 0.999), lambda real, made: judged(real, True) + judged(made.detach(), False), lambda made: judged(made, True))

    def wgan_gp(run):
        d = nn.Module()
        d.down1, d.down2, d.head = nn.Conv2d(1, 16, 4, 2, 1), nn.Conv2d(16, 32, 4, 2, 1), nn.Linear(32 * 49, 1)

        def critic(images):
            return d.head(F.leaky_relu(d.down2(F.leaky_relu(d.down1(images), 0.2)), 0.2).flatten(1)).flatten()

        def loss(real, made):
            gap = critic(made.detach()).mean() - critic(real).mean()
            between = (made.detach() + (real - made.detach()) * run.uniform(16, 1, 1, 1)).requires_grad_()
            slope, = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            return gap + 10 * (slope.flatten(1).norm(dim=1) - 1).square().mean()

        return adversarial(run, d, 2e-4, (0.5, 0.9), loss, lambda made: -critic(made).mean())

    def ddpm(run):
        beta = [1e-3 + 0.12 * t / 49 for t in range(50)]
        left, alpha = 1.0, []
        for b in beta:
            left = torch.tensor(left * (1 - b), dtype=torch.float32).item()
            alpha.append(left)
        alpha = torch.tensor(alpha)
        m = run.module(table=nn.Embedding(50, 64), fc1=nn.Linear(2, 64), fc2=nn.Linear(64, 64), fc3=nn.Linear(64, 2))

        def loss():
            angle = run.uniform(128, 1).sqrt() * 9
            x, noise = torch.cat([angle.cos() * angle, angle.sin() * angle], 1) * 0.2, run.normal(128, 2)
            time = (run.uniform(128) * 50).long()
            a = alpha[time].reshape(128, 1)
            h = F.silu(m.fc1(a.sqrt() * x + (1 - a).sqrt() * noise) + m.table(time))
            return F.mse_loss(m.fc3(h + F.silu(m.fc2(h))), noise)

        return trained(m, torch.optim.Adam(m.parameters(), 3e-3), loss)

    def unet(run):
        m = run.module(down1=nn.Conv2d(1, 8, 3, padding=1), down2=nn.Conv2d(8, 16, 3, padding=1), bottom=nn.Conv2d(16, 32, 3, padding=1), up2=nn.ConvTranspose2d(32, 16, 2, 2),
                       merge2=nn.Conv2d(32, 16, 3, padding=1), up1=nn.ConvTranspose2d(16, 8, 2, 2), merge1=nn.Conv2d(16, 8, 3, padding=1), head=nn.Conv2d(8, 1, 1))

        def loss():
            clean = run.digits(8)[0]
            noisy, wanted = clean + run.normal(*clean.shape) * 0.3, (clean > 0.5).float()
            fine = F.relu(m.down1(noisy))
            middle = F.relu(m.down2(F.max_pool2d(fine, 2)))
            coarse = F.relu(m.bottom(F.max_pool2d(middle, 2)))
            up = F.relu(m.merge2(torch.cat([m.up2(coarse), middle], 1)))
            return F.binary_cross_entropy_with_logits(m.head(F.relu(m.merge1(torch.cat([m.up1(up), fine], 1)))), wanted)

        return trained(m, torch.optim.Adam(m.parameters(), 3e-3), loss)

    def pushed(state, action):
        """The state of cart and pole 0.02 s later, and whether the episode goes on."""
        x, v, angle, w = state
        force, sine, cosine = 10 if action else -10, math.sin(angle), math.cos(angle)
        shared = (force + 0.05 * w * w * sine) / 1.1
        turned = (9.8 * sine - cosine * shared) / (0.5 * (4 / 3 - 0.1 * cosine * cosine / 1.1))
        moved = shared - 0.05 * turned * cosine / 1.1
        x, v, angle, w = x + 0.02 * v, v + 0.02 * moved, angle + 0.02 * w, w + 0.02 * turned
        return [x, v, angle, w], abs(x) < 2.4 and abs(angle) < 0.2095

    def reinforce(run):
        m = run.module(fc1=nn.Linear(4, 64), fc2=nn.Linear(64, 2))
        optimizer, losses = torch.optim.Adam(m.parameters(), 5e-3), []
        for _ in range(STEPS):
            sampled = run.uniform(204).tolist()
            state, states, actions, goes_on = [0.1 * u - 0.05 for u in sampled[200:]], [], [], True
            while goes_on and len(actions) < 200:
                states.append(state)
                with torch.no_grad():
                    to_left = F.softmax(m.fc2(F.relu(m.fc1(torch.tensor([state])))), 1)[0, 0].item()
                actions.append(0 if sampled[len(actions)] < to_left else 1)
                state, goes_on = pushed(state, actions[-1])
            returns, after = [], 0
            for _ in actions:
                after = 1 + 0.99 * after
                returns.insert(0, after)
            gain = torch.tensor(returns)
            gain = (gain - gain.mean()) / (gain.var().sqrt() + 1e-6)
            log_probabilities = F.log_softmax(m.fc2(F.relu(m.fc1(torch.tensor(states)))), 1)
            optimizer.zero_grad()
            (-log_probabilities[range(len(actions)), actions] * gain).sum().backward()
            optimizer.step()
            losses.append(-float(len(actions)))
        return losses

    def ppo(run):
        m = run.module(fc1=nn.Linear(4, 64), policy=nn.Linear(64, 2), value=nn.Linear(64, 1))
        optimizer, losses, state = torch.optim.Adam(m.parameters(), 5e-3), [], [0.0] * 4

        def model(states):
            h = torch.tanh(m.fc1(states))
            return F.log_softmax(m.policy(h), 1), m.value(h).flatten()

        for _ in range(STEPS):
            sampled, states, actions, said, values, lost = run.uniform(256, 5).tolist(), [], [], [], [], []
            for i in range(257):
                with torch.no_grad():
                    scores, value = model(torch.tensor([state]))
                values.append(value.item())
                if i == 256:
                    break
                actions.append(0 if sampled[i][0] < math.exp(scores[0, 0]) else 1)
                said.append(scores[0, actions[-1]].item())
                states.append(state)
                state, goes_on = pushed(state, actions[-1])
                lost.append(not goes_on)
                if lost[-1]:
                    state = [0.1 * u - 0.05 for u in sampled[i][1:]]
            after, advantages = 0.0, [0.0] * 256
            for i in reversed(range(256)):
                goes_on = 0 if lost[i] else 1
                after = 1 + 0.99 * goes_on * values[i + 1] - values[i] + 0.99 * 0.95 * goes_on * after
                advantages[i] = after
            returns = torch.tensor([a + v for a, v in zip(advantages, values)])
            a = torch.tensor(advantages)
            gain = (a - a.mean()) / (a.var().sqrt() + 1e-8)
            for _ in range(4):
                scores, now = model(torch.tensor(states))
                ratio = torch.exp(scores[range(256), actions] - torch.tensor(said))
                won = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                entropy = -(scores.exp() * scores).sum() / 256
                optimizer.zero_grad()
                (0.5 * F.mse_loss(now, returns) - won - 0.01 * entropy).backward()
                nn.utils.clip_grad_norm_(m.parameters(), 0.5)
                optimizer.step()
            losses.append(-256 / max(1, sum(lost)))
        return losses

    def translation(run):
        m = run.module(source_table=nn.Embedding(12, 48), target_table=nn.Embedding(13, 48), encoder=nn.GRU(48, 48, batch_first=True),
                       decoder=nn.GRU(48, 48, batch_first=True), merge=nn.Linear(96, 48), head=nn.Linear(48, 12))

        def loss():
            source = (run.uniform(32, 8) * 12).long()
            target = (11 - source).flip(1)
            read, last = m.encoder(m.source_table(source))
            said = m.decoder(m.target_table(torch.cat([torch.full((32, 1), 12), target[:, :-1]], 1)), last)[0]
            attention = (said @ read.transpose(1, 2)).softmax(-1)
            scores = m.head(torch.tanh(m.merge(torch.cat([said, attention @ read], 2))))
            return F.cross_entropy(scores.reshape(-1, 12), target.reshape(-1))

        return trained(m, torch.optim.Adam(m.parameters(), 5e-3), loss, clip=1)

    def speech(run):
        m = run.module(gru=nn.GRU(6, 48, bidirectional=True), head=nn.Linear(96, 7))

        def loss():
            tone, time = run.uniform(16, 4).tolist(), run.uniform(16, 4).tolist()
            loud, said = torch.zeros(40, 16, 6), torch.zeros(16, 4, dtype=torch.long)
            for i in range(16):
                at = 2
                for w in range(4):
                    said[i, w], end = 1 + int(tone[i][w] * 6), at + 4 + int(time[i][w] * 4)
                    loud[at:end, i, said[i, w] - 1] = 1
                    at = end + 2
            heard = loud + run.normal(40, 16, 6) * 0.3
            return F.ctc_loss(F.log_softmax(m.head(m.gru(heard)[0]), 2), said, [40] * 16, [4] * 16)

        return trained(m, torch.optim.Adam(m.parameters(), 5e-3), loss, clip=1)

    def words(model, forward):
        """forward(x, state) returns outputs and the next state; each step reads three short sentences."""

        def losses(run):
            m = run.module(table=nn.Embedding(14, 32), decoder=nn.Linear(32, 14), **model())
            state = None

            def loss():
                nonlocal state
                adjective, subject, verb = (run.uniform(3, 3, 32) * 4).long()
                the = torch.zeros_like(subject)
                text = torch.stack([the, adjective + 2, subject + 6, verb + 10, the, (subject + 1) % 4 + 6, the + 1], 1).reshape(21, 32)
                y, state = forward(m, m.table(text), state)
                return F.cross_entropy(m.decoder(y).reshape(-1, 14), torch.cat([text[1:], the[:1]]).reshape(-1))

            return trained(m, torch.optim.Adam(m.parameters(), 5e-3), loss, clip=0.25)

        return losses

    def lstm(m, x, state):
        y, (h, c) = m.lstm(x, state)
        return y, (h.detach(), c.detach())

    def gru(m, x, state):
        y, h = m.gru(x, state)
        return y, h.detach()

    def transformer(m, x, state):
        place, speed = torch.arange(21.0)[:, None], torch.exp(torch.arange(0, 32, 2.0) * (-math.log(10000) / 32))
        positions = torch.stack([torch.sin(place * speed), torch.cos(place * speed)], 2).reshape(21, 1, 32)
        return m.transformer(x * math.sqrt(32) + positions, mask=nn.Transformer.generate_square_subsequent_mask(21), is_causal=True), None

    by_words = {
        "word_language_model": words(lambda: dict(lstm=nn.LSTM(32, 32, 2)), lstm),
        "word_language_model --model gru": words(lambda: dict(gru=nn.GRU(32, 32, 2)), gru),
        "word_language_model --model transformer": words(
            lambda: dict(transformer=nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0), 2, enable_nested_tensor=False)), transformer),
    }
    return {f.__name__: f for f in (vae, mnist_rnn, super_resolution, siamese, time_series, flow, dcgan, wgan_gp, ddpm, unet, reinforce, ppo, translation, speech)} | by_words


def check(golden, build):
    passed = failed = 0
    for name, wanted in golden.items():
        if not (build / "examples" / name.split()[0]).exists():  # it uses an extension that was not built
            continue

        def said(*words):
            program, *options = name.split()
            done = subprocess.run([str(build / "examples" / program), *options, *words], capture_output=True, text=True, timeout=300, env=dict(os.environ, OMP_NUM_THREADS="1"))
            return done.stdout + done.stderr

        text = said("--golden", "--steps", str(len(wanted)))
        losses = [float(x) for x in re.findall(r"^step \d+ loss (\S+)$", text, re.M)]
        off = [abs(a - b) / max(1, abs(b)) for a, b in zip(losses, wanted)]
        trained = said()
        last = re.search(r"^last loss (\S+)$", trained, re.M)
        for good, why in ((len(losses) == len(wanted) and max(off) < 1e-4, f"expected PyTorch's losses {wanted}, got\n{text}"),
                          (last and float(last[1]) < TRAINED[name], f"expected a loss below {TRAINED[name]}, got\n{trained}")):
            passed, failed = passed + bool(good), failed + (not good)
            if not good:
                print(f"{name}: {why}")
        if "--verbose" in sys.argv:
            print(f"{name}: off by {max(off, default=math.nan):.1e}, {last and last[1]}")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    path = pathlib.Path(sys.argv[2])
    if sys.argv[1] == "write":
        path.write_text("{\n" + ",\n".join(f'"{name}": {json.dumps([float(f"{x:.8g}") for x in program(Run())])}' for name, program in programs().items()) + "\n}\n")
    else:
        sys.exit(check(json.loads(path.read_text()), pathlib.Path(sys.argv[3])))
