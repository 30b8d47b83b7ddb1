"""Words and sentences of the embedded story grammar, as plain data.

``NAMES``, ``INVENTED_NAMES`` and ``WORDS`` are word tables, most likely word first. ``RULES`` maps
a rule to its alternative templates, most likely first. In a template

- ``<rule>`` is one of the templates of that rule;
- ``[one|two|]`` is one of the bracketed pieces, most likely first (a piece may be empty);
- ``{toy}`` is a remembered word: drawn from the table ``toy`` on first use and repeated afterwards;
- ``{toy2}`` is a second remembered word of the same table that differs from ``{toy}``;
- ``{+toy}`` is a fresh word, unlike the last one drawn from its table, that is not remembered;
- ``{a toy}``, ``{a +toy}`` put "a" or "an" in front of it;
- ``{hero}`` and ``{friend}`` are two children with different names, ``{boy}`` says which the hero
  is;
- ``{he}``, ``{him}``, ``{his}`` are the hero's pronouns; a slot that begins with a capital writes
  one.

A story has one derivation as long as the templates of a rule differ in their literal text, no table
repeats a word, and an optional piece does not read like what may follow it.
"""

SHAPE = {"table": (30.0, 4.0), "rule": (4.0, 1.0), "piece": (1.5, 1.0), "word": (100.0, 1.0)}
"""``(shift, power)`` by kind of choice, or by table: the option at rank 0, 1, 2, ... has a
probability proportional to ``(rank + shift) ** -power``."""

INVENTED_SHARE = 0.1
"""Probability that a child's name is an invented one."""

NAMES = {
    "girl": """Lily, Mia, Anna, Sara, Emma, Lucy, Ella, Rosie, Molly, Sophie, Amy, Daisy, Grace,
        Zoe, Nina, Kate, Jane, Ruby, Maya, Clara, Alice, Ivy, Holly, Julia, Eva, Leah, Nora, Hannah,
        Bella, Penny, Polly, Tara, Wendy, Olivia, Oneida, Abby, Ruth, Stella, Heidi, Iris, Martha,
        Fiona, Gina, Joy, Kira, Laura, Megan, Naomi, Paula, Rachel, Sheila, Tess, Una, Vera, Willa,
        Yasmin, Zelda, Dora, Elsie, Frances, Greta, Ingrid, Letty, Myra, Theresa, Candice, Haven""",
    "boy": """Tim, Tom, Ben, Max, Sam, Jack, Leo, Billy, Bobby, Joe, Timmy, Dan, Peter, Adam, Luke,
        Noah, Jake, Finn, Oscar, Henry, Oliver, Charlie, Danny, Eddie, Freddy, George, Harry, Ian,
        Jimmy, Kevin, Liam, Mark, Nick, Owen, Paul, Ray, Simon, Toby, Victor, Will, Alex, Bruno,
        Carl, David, Eric, Felix, Gus, Hugo, Herbert, Jonas, Kurt, Louis, Martin, Ned, Otto, Pablo,
        Ralph, Steve, Theo, Walter, Zack, Andy, Noel, Atticus, Thatcher""",
}
"""Common first names by gender."""

INVENTED_NAMES = {
    "first": """Mar, Kel, Tam, Bri, Zor, Fen, Dal, Lu, Pim, Vo, Jas, Ni, Gwi, Tro, Quil, Sha, Yor,
        Hes, Bax, Wim""",
    "middle": "i, o, e, ani, ito, ela, uri, obi, edi, ape",
    "girl": "lla, nia, ra, ssa, wa, lina, tta, mea",
    "boy": "ko, ndor, rik, vo, lt, mus, ton, bin",
}
"""An invented name is a first and a middle syllable and an ending that shows the gender."""

ROLES = {"hero": "child", "friend": "child", "boy": "gender"}
"""Table of the remembered words that are not named like their table."""

UNLIKE = {"friend": "hero"}
"""The remembered word that another one must differ from, besides the numbered ones."""

PRONOUNS = {
    "boy": {"he": "he", "him": "him", "his": "his"},
    "girl": {"he": "she", "him": "her", "his": "her"},
}
"""What ``{he}``, ``{him}`` and ``{his}`` become."""

SOUND_LIKE_A_CONSONANT = ("uni", "use", "uku", "one")
"""Beginnings that take "a" in spite of their vowel."""

SOUND_LIKE_A_VOWEL = ("honest", "hourglass")
"""Words that take "an" in spite of their consonant."""

WORDS = {
    "gender": "girl, boy",
    "parent": """mom, dad, grandma, grandpa, mother, father, aunt, uncle, granny, sister, brother,
        cousin, nanny, stepmom, stepdad""",
    "trait": """kind, curious, brave, clever, cheerful, shy, friendly, gentle, funny, quiet,
        careful, polite, playful, silly, helpful, smart, honest, lively, thoughtful, stubborn,
        patient, sweet, bold, dreamy, messy, restless, caring, busy, chatty, lucky, noisy, tidy,
        eager, jolly, bouncy, sleepy, loving, fearless, bashful, merry""",
    "home": """sea, river, forest, hill, lake, woods, mill, mountain, farm, bridge, meadow, harbor,
        canal, castle, market, valley, church, railway, desert, lighthouse, cliff, swamp, orchard,
        bay, highway, quarry, waterfall, vineyard, dunes, border""",
    "hair": """brown, curly, red, black, long, short, yellow, golden, wavy, straight, fluffy, dark,
        blond, spiky, braided, tangled, thick, silky, ginger, bushy""",
    "time": "morning, afternoon, day, evening, weekend",
    "weather": """sunny, rainy, warm, windy, cold, bright, snowy, cloudy, hot, foggy, cool, stormy,
        chilly, misty, gray, breezy, frosty, mild, icy, damp, dry, hazy, wet, drizzly, freezing,
        humid, gusty, muggy""",
    "day": "Saturday, Sunday, Monday, Friday, Wednesday, Tuesday, Thursday",
    "color": """red, blue, green, yellow, pink, white, purple, orange, black, brown, silver, golden,
        gray, violet, turquoise, crimson, beige, scarlet, teal, indigo, maroon, lilac, cream, amber,
        lavender""",
    "clothing": """hat, coat, dress, scarf, sweater, cap, jacket, shirt, cape, raincoat, belt, vest,
        bow tie, apron, hood, crown, robe, poncho, backpack, bracelet, necklace, ribbon, mask,
        uniform, kilt, cloak, headband, bonnet, shawl, sash""",
    "activity": """play, sing, dance, run, draw, read, paint, swim, climb trees, jump in puddles,
        pick flowers, tell jokes, bake, hum, skip, fish, count stars, dig holes, watch birds, ride
        horses, fly kites, solve riddles, feed ducks, catch bugs, make masks, write poems, collect
        stamps, roll down hills, explore caves, splash about, whistle tunes, water plants, chase
        butterflies, build towers, sort shells, do puzzles, boil eggs, make soap, gather leaves,
        study maps, act in plays, look at clouds, sail, knit, juggle, garden, skate, camp, hike,
        giggle""",
    "job": """teacher, doctor, farmer, baker, singer, pilot, nurse, painter, sailor, fireman,
        dancer, cook, police officer, builder, vet, gardener, driver, dentist, tailor, writer,
        fisherman, astronaut, judge, clown, magician, carpenter, engineer, librarian, shopkeeper,
        plumber, potter, barber, miner, captain, guard, mailman, butcher, blacksmith, scientist,
        zookeeper, waiter, detective, artist, inventor, shepherd, actor, beekeeper, florist,
        lifeguard, optician""",
    "food": """cake, soup, bread, rice, cheese, ice cream, pizza, pasta, apples, cookies, pie, jam,
        pancakes, honey, carrots, bananas, berries, fish, chicken, salad, popcorn, grapes,
        chocolate, corn, eggs, stew, peas, yogurt, noodles, potatoes, muffins, oranges, beans,
        toast, pudding, cherries, plums, pears, jelly, porridge, waffles, dumplings, nuts, melon,
        peaches, raisins, crackers, sandwiches, tomatoes, pumpkin, tacos, pickles, mushrooms,
        meatballs, sausages, custard, figs, oatmeal, spinach, curry""",
    "toy": """ball, doll, truck, kite, train, robot, puzzle, drum, boat, bike, teddy bear, scooter,
        plane, top, wagon, puppet, balloon, bucket, tractor, sled, rocket, yo-yo, whistle, trumpet,
        dollhouse, hoop, rocking horse, spaceship, toy car, dinosaur, jump rope, slingshot, fire
        engine, stuffed rabbit, flute, board game, marble, paint box, magic wand, toy castle,
        tambourine, music box, telescope, toy sword, tea set, boomerang, skateboard, helicopter, toy
        piano, pinwheel, ukulele, submarine, parachute, kazoo, microscope, toy camel, bulldozer,
        xylophone, periscope, accordion""",
    "thing": """hat, key, ring, book, button, shell, stone, bell, pencil, coin, mitten, scarf,
        spoon, feather, watch, necklace, flashlight, notebook, card, brush, comb, umbrella, magnet,
        pearl, badge, purse, bracelet, pen, locket, compass, medal, photo, glove, sock, lunch box,
        ribbon, bead, whistle, mirror, crayon, map, diary, penknife, stamp, pin, thimble, lantern,
        handkerchief, charm, wallet, acorn, seashell, fan, harmonica, postcard, brooch, sticker,
        rattle, cork, hourglass""",
    "breakable": """vase, cup, plate, lamp, bowl, jar, clock, mirror, mug, teapot, glass, flowerpot,
        picture, bottle, pitcher, statue, radio, bird feeder, basket, fishbowl, camera, tray, snow
        globe, chess set, candlestick, wine jug, saucer, chandelier, violin, lantern, garden gnome,
        telephone, piggy bank, sugar bowl, guitar, egg timer, trophy, jewelry box, butter dish,
        birdcage, salt shaker, cookie jar, honey pot, model ship, thermometer, typewriter""",
    "adj": """shiny, new, old, little, pretty, special, tiny, lovely, nice, funny, beautiful,
        strange, round, small, big, smooth, wooden, sparkly, bright, clean, fancy, amazing, simple,
        cute, plain, striped, odd, wonderful, dusty, colorful, unusual, perfect, painted, magical,
        heavy, light, rare, dotted, enormous, precious, homemade, useful, marvelous, glittery,
        delicate, rusty, sturdy, splendid, elegant, quaint, expensive, ordinary, faded, dainty,
        mysterious, checkered, charming, handmade, secondhand, polished, curious, ancient, gleaming,
        patched, cheap, foreign, modern, decorated, superb, wobbly, bumpy, antique, slim, dazzling,
        gorgeous, peculiar, glossy, neat, exotic, crooked""",
    "box": """box, bag, basket, drawer, chest, closet, cupboard, suitcase, pocket, backpack, trunk,
        bucket, jar, barrel, sack, crate, cabinet, wardrobe, tin, pouch""",
    "furniture": """bed, table, sofa, chair, rug, desk, curtain, piano, couch, bench, stove, pillow,
        bookcase, blanket, staircase, shed, armchair, dresser, cushion, carpet, hedge, bathtub,
        washing machine, laundry basket, sink, television, stool, crib, fridge, wheelbarrow,
        radiator, mattress, doghouse, haystack""",
    "surface": """table, shelf, desk, piano, counter, cabinet, windowsill, bench, stool, dresser,
        chest, stove, fridge, bookcase, nightstand, sideboard, coffee table, toy box, workbench,
        barrel""",
    "present": """card, picture, necklace, scarf, bracelet, hat, lamp, book, box, basket, toy,
        mobile, puppet, kite, calendar, pillow, bird feeder, candle, photo frame, bookmark, vase,
        crown, clock, bag, bowl, wreath, pencil holder, paperweight, jewel case, doorstop""",
    "place": """park, beach, garden, forest, lake, playground, farm, zoo, river, store, library,
        market, school, pond, meadow, pool, town square, barn, museum, hill, train station, bakery,
        harbor, fair, circus, castle, bridge, field, bus stop, orchard, toy shop, stream, cave,
        church, fountain, post office, campground, theater, hospital, airport, stadium, mill,
        bookstore, valley, mountain, tea room, duck pond, aquarium, greenhouse, skating rink,
        lighthouse, waterfall, railway, windmill, temple, dock, cafe, swamp, observatory, quarry""",
    "animal": """bird, puppy, kitten, rabbit, duck, squirrel, cat, dog, frog, mouse, turtle, fox,
        owl, lamb, hedgehog, pony, chick, goose, deer, goat, sparrow, crow, raccoon, robin, hamster,
        pigeon, swan, lizard, chipmunk, mole, badger, otter, seal, parrot, piglet, donkey, hen,
        calf, bat, beaver, gull, toad, rooster, skunk, penguin, guinea pig, weasel, ferret, crane,
        stork, magpie, pelican, wren, newt, heron, falcon, woodpecker, porcupine, opossum, gecko""",
    "part": "leg, foot, back, side, toe, nose, neck, eye, tail, head, chin, belly",
    "wild": """lion, bear, butterfly, elephant, monkey, whale, tiger, dragon, unicorn, giraffe,
        dolphin, wolf, horse, cow, eagle, zebra, kangaroo, shark, camel, snake, hippo, spider,
        panda, crab, octopus, moose, crocodile, peacock, ladybug, dragonfly, rhino, gorilla,
        buffalo, flamingo, walrus, ostrich, leopard, jellyfish, koala, llama, cheetah, snail,
        starfish, hyena, antelope, scorpion, sloth, bee, iguana, yak""",
    "pet": """dog, cat, rabbit, hamster, parrot, turtle, pony, goat, mouse, goose, lizard, hen,
        ferret, frog""",
    "petname": """Spot, Fluffy, Rex, Buddy, Snowy, Ginger, Pepper, Whiskers, Biscuit, Shadow,
        Cookie, Patch, Muffin, Rusty, Socks, Bubbles, Coco, Lucky, Mittens, Nibbles, Peanut, Pickle,
        Pippin, Sunny, Toffee, Waffles, Ziggy, Button, Dumpling, Fudge, Hazel, Jellybean, Marble,
        Noodle, Olive, Pudding, Raven, Sparky, Thistle, Turnip""",
    "happy": """happy, glad, proud, excited, pleased, cheerful, calm, thankful, brave, safe, joyful,
        warm, lucky, delighted, grateful, cozy, hopeful, content, thrilled, peaceful, loved, strong,
        relaxed, amazed, relieved, jolly, satisfied, merry, confident, blissful""",
    "sad": """sad, upset, worried, scared, angry, sorry, unhappy, lonely, nervous, cross, tired,
        afraid, disappointed, grumpy, ashamed, frightened, gloomy, hurt, confused, jealous,
        miserable, anxious, helpless, embarrassed, puzzled, restless, heartbroken, alarmed, guilty,
        uneasy""",
    "manner": """softly, quietly, loudly, sadly, slowly, quickly, gently, kindly, nervously,
        bravely, politely, eagerly, calmly, firmly, shyly, carefully, proudly, warmly, hopefully,
        suddenly, cheerfully, seriously, patiently, timidly, breathlessly, honestly, anxiously,
        gravely, thoughtfully, sweetly""",
    "material": """sticks, stones, wood, boxes, sand, bricks, blankets, clay, straw, snow, branches,
        logs, leaves, mud, paper, nails, rope, shells, planks, string, cardboard, pillows, pebbles,
        wheels, tape, wire, pine cones, cans, tiles, bark, barrels, feathers, moss, glue,
        driftwood""",
    "building": """house, castle, fort, tower, tent, bridge, boat, cave, raft, swing, tree house,
        bird house, wall, robot, tunnel, cabin, spaceship, dam, hut, statue, maze, palace, wagon,
        slide, seesaw, rocket, snowman, windmill, stage, barn, kennel, ship, lighthouse, igloo,
        pyramid, catapult, arch, scarecrow, stable, ladder""",
    "skill": """swim, ride a bike, whistle, dance, read, climb a tree, skate, play the piano, cook,
        sing, draw, ski, fly a kite, tie a bow, juggle, throw a ball, row a boat, do a handstand,
        ride a pony, bake bread, play the drum, catch a fish, paint, knit, jump rope, dive, do a
        flip, play the flute, sew, surf, make a paper crane, milk a cow, do a cartwheel, hop on one
        foot, saddle a horse, walk on stilts, tie knots, play the harp, carve wood, blow bubbles,
        roller-skate, walk on a rope, yodel, tap-dance, play the violin, shoot an arrow, paddle a
        canoe""",
    "fear": """dark, big dog, spiders, high slide, storm, tall ladder, deep pool, loud train, black
        cat, big waves, owl, shadows, bees, clown, fog, fireworks, lightning, crowd, rooster, old
        well, bats, ghost train, escalator, vacuum cleaner, scarecrow, steep stairs, mice, billy
        goat, tunnel, witch, mummy, snakes, skeleton, bull, wasps, elevator, crane, volcano, giant,
        pirates""",
    "scared": """scared, afraid, nervous, frightened, worried, terrified, alarmed, uneasy, anxious,
        shaky, timid, tense, small, weak, alone""",
    "sound": """crash, bang, thud, crack, bump, clang, smash, clatter, pop, snap, boom, splash,
        whoosh, clink, thump, rattle""",
    "nature": """flower, leaf, pebble, rose, daisy, shell, feather, pine cone, tulip, acorn,
        sunflower, lily, clover, violet, mushroom, fern, poppy, chestnut, dandelion, berry, branch,
        buttercup, wildflower, iris, snowdrop, orchid, bluebell, crystal, carnation, thistle""",
    "count": "two, three, five, four, ten, seven, six, twenty, eight, nine, twelve, thirty",
    "wow": """Wow, Thank you, Hooray, Great, Oh, Yes, Yay, Look, Wonderful, Goodness, Perfect, My oh
        my, Bravo""",
    "word": """girl, boy, learned, upon, town, house, make, jump, climb, ice, high, an, the, and,
        was, to, it, with, said, she, he, named, her, felt, his, of, gave, near, they, hair, friend,
        lived, ran, saw, took, some, there, wanted, ate, fell, asked, went, but, came, time, from,
        by, told, is, him, favorite, found, last, broke, us, put, so, ago, dreamed, made, once,
        could, like, feel, under, out, shared, no, had, hid, sat, days, liked, food, wore, for,
        built, thing, gone, hugged, be, or, night, help, sang, can, never, been, mine, seen, fun,
        will, tried, away, into, played, behind, did, need, off, take, turns, only, met, who,
        without, that, not, child, your, thought, see, share, wind, its, friends, try, worked,
        looks, then, fixed, times, steps, think, village, truth, hit, coins, too, lost, boats, has,
        learn, want, all, am, better, go, again, even, helps, were, stopped, up""",
}
"""Word tables; a word that is more than one word keeps its spaces."""

RULES = """
story = <opening> <plot> <close>
  <opening> <intro> <plot>
  <opening> <plot>
plot = <lost start> <lost gone> <lost call> <lost end>
  <share start> <share want> <share no> <share end>
  <hurt start> <hurt find> <hurt care> <hurt end>
  <fear start> <fear meet> <fear talk> <fear end>
  <break start> <break crash> <break tell> <break end>
  <build start> <build fall> <build again> <build end>
  <learn start> <learn fail> <learn help> <learn end>
  <gift start> <gift plan> <gift make> <gift end>
  <trip start> <trip see> <trip lost> <trip end>
  <quarrel start> <quarrel fight> <quarrel sorry> <quarrel end>
opening = Once[ upon a time|], there was {a trait}, {+trait} {boy} named {hero}.
  {hero} was {a trait}, {+trait} {boy} with {hair} hair.
  In {a +adj} [town|house|village] by the {home} lived {a trait} {boy} named {hero}.
  {hero} was {a trait}, {+trait} {boy} from the {home}.
  There once was {a trait}, {+trait} {boy} with {hair} hair named {hero}.
  Long ago, {a trait}, {+trait} {boy} named {hero} lived near the {home}.
intro = {He} [loved|liked] to {+activity}, {+activity} and {+activity}.
  {His} favorite food was {food}, and {he} wore {a +adj} {+color} {+clothing}.
  {He} wanted to be {a +job}, {a +job} or {a +job}.
  {He} had {a +adj} {+color} {pet} named {petname}.
when = One {+weather} {+time},
  On {a +weather} {+day},
  One {+weather}, {+weather} {+time},
  On {+day} [morning|afternoon|evening],
  On {+day},
close = Before bed, {he} learned new words: {+word}, {+word}, {+word}, {+word}.
  That night, {he} dreamed of {a +color} {+wild} in {a +adj} {+clothing}.
  {He}'d never been so {+happy} and {+happy}.
  {He} dreamed of {a +toy} that was {+adj}, {+adj} and {+color}.

lost start = {His} favorite thing was {a adj} {color} {thing} in {a +adj} {+box}.
  {His} {parent} gave {him} {a adj} {color} {thing}, some {+food} and {a +adj} {+toy}.
  {He} loved {his} {adj} {color} {thing} and {his} {+adj} {+toy}.
lost gone = <when> at the {place}, it fell out of {his} {+color} {+clothing}.
  <when> {he} ran to the {+adj} {place} to {+activity} and {+activity}, and it was gone.
  <when> {a +adj} {+color} {+animal} took it and ran away to the {place}.
lost call = "Where is my {thing}?" {he} asked {his} {+trait} {parent} {+manner}.
  "Have you seen it?" {he} asked {a +trait} {+job} and {a +adj} {+animal}.
  {He} felt {+sad} and {+sad} and told {a +trait} {+job} {+manner} about it.
lost end = At last, {a +adj} {+color} {+wild} came with the {thing}! {hero} gave it {+food} and \
{+food}.
  {A +trait} {+job} found it near {a +adj} {+color} {+furniture}. "{+wow}!" said {hero} {+manner}.
  It was in {a +color} {+box}, under some {+material}! {hero} felt {+happy} and {+happy}.

share start = <when> {he} took {his} {adj} {color} {toy} to the {+adj} {place}.
  <when> {he} was at the {place} with {a adj} {toy} and {a +color} {toy2}.
  {His} {parent} gave {him} {a adj} {color} {toy} and {a +adj} {+thing}.
share want = {His} {+trait} friend {friend} asked {+manner}, "{+wow}! Can I play with it?"
  There {he} met {friend}, who felt {+sad} and {+sad} without {a toy}.
  {A +trait}, {+trait} child named {friend} said {+manner}, "I like your {adj} {toy}!"
share no = "No, it is mine!" {he} said {+manner} and ran to the {+adj} {+place}.
  "No! Play with {a +adj} {+color} {+thing}," {he} said {+manner}. {friend} felt {+sad}.
  {hero} said no and hid it under {a +adj} {+color} {+furniture}.
share end = But it was no fun to {+activity} alone, so {hero} shared the {toy}, {+food} and {+food}.
  "Let us take turns," said {hero} {+manner}. Then they ate {+food} and {+food}.
  Then {he} saw {a +color} {+animal} share {+food} with {a +adj} {+wild}. So {hero} and \
{friend} shared it.

hurt start = <when> {hero} went to the {place} with {his} {+trait} {parent} to {+activity} and \
{+activity}.
  <when> {hero} was at the {place} to look for {a +adj} {+color} {+nature}.
  <when> {hero} and {his} {+trait} friend {friend} ran to the {place}.
hurt find = Under {a +adj} {+furniture} {he} saw {a +adj} {color} {animal} with a hurt {part}.
  {A +adj} {color} {animal} with a hurt {part} sat in {a +adj} {+box}.
  Behind some {+material} was {a +adj} {color} {animal} with a hurt {part}.
hurt care = {He} put it in {a +adj} {+box} with some {+material} and gave it {+food} and {+food}.
  {He} put {a +adj} {+color} {+clothing} on its {part} and took it to the {+furniture}.
  For {+count} {+weather} days, {he} gave it {+food} and {+food} and sang to it {+manner}.
hurt end = Soon it was well and ran {+manner} to the {+place}. {hero} felt {+happy} and {+happy}.
  After {+count} {+weather} days, it was well and gave {hero} {a +adj} {+color} {+nature}.
  {hero} named it {+petname}. They loved to {+activity}, {+activity} and {+activity}.

fear start = {hero} liked {+food}, {+food} and {his} {adj} {toy}, but {he} was afraid of the {fear}.
  {He} could {+activity}, {+activity} and {+activity}, but {he} was afraid of the {fear}.
  The {fear} made {him} feel {+scared} and {+scared}.
fear meet = <when> {hero} took {his} {adj} {toy} to the {place} and saw the {fear}.
  <when> {hero} went to the {place} with {his} {+trait} friend {friend} and saw the {fear}.
  <when> {hero} saw the {fear} at the {place} and hid behind {a +adj} {+color} {+furniture}.
fear talk = "I feel {+scared}," {he} said {+manner}. "Think of {+food} and {+food}!" said {his} \
{parent}.
  {His} {parent} gave {him} {a +adj} {+color} {+thing} and said {+manner}, "Be {+happy}!"
  {A +trait} {+job} said {+manner}, "Count to {+count} and think of {+food} and {+food}."
fear end = So {he} thought of {a +adj} {+color} {+wild} and went on {+manner}. {hero} felt {+happy}.
  "{+wow}!" said {his} {parent} {+manner}. They ate {+food} and {+food}, and {hero} felt {+happy}.
  {He} took {+count} steps and sang {+manner} about {a +adj} {+color} {+animal} and {a +wild}.

break start = <when> {hero} played with {his} {adj} {color} {toy} near {a +adj} {surface}.
  <when> {hero} and {his} {+trait} friend {friend} wanted to {+activity} and {+activity} near \
the {surface}.
  <when> {hero} found {a adj} {toy} and {a +color} {+thing} on the {surface}.
break crash = {+Sound}! {A +adj} {+color} {breakable} fell off the {surface} and broke.
  {He} hit {a +adj} {+color} {breakable}, and it broke with {a +sound}.
  {He} did not see the {+adj} {+color} {breakable}. {+Sound}! It broke.
break tell = "I broke it," {he} told {his} {parent} {+manner}. "I feel {+sad} and {+sad}."
  {His} {+trait} {parent} came from the {+adj} {+place} with {+food}, and {he} told the truth \
{+manner}.
  "Who broke it?" asked {his} {+trait} {parent} {+manner}. "I did," said {hero} {+manner}.
break end = {His} {parent} hugged {him} {+manner}. They fixed it with {+material} and {+adj} \
{+material}.
  {His} {parent} felt {+sad}, but at the {+place} they found {a +adj} {+color} {+breakable}.
  "Be {+trait} and {+trait}," said {his} {parent} {+manner}. {hero} felt {+happy} again.

build start = <when> {hero} and {friend} built {a adj} {building} with {+material} at the \
{+adj} {place}.
  "Let us build {a adj} {building} with {+material}!" {hero} told {his} {+trait} friend \
{friend} {+manner}.
  <when> {hero} and {his} {+trait} friend {friend} built {a adj} {building} with {+material} \
and {+material}.
build fall = Then {a +weather} wind came. {+Sound}! It fell on {a +adj} {+color} {+box}.
  {A +adj} {+color} {+animal} ran into it. {+Sound}! It fell down.
  "It looks like {a +adj} {+color} {+furniture}!" said {friend} {+manner}.
build again = "Let us try {+material}, {+material} and {+material}," said {friend} {+manner}.
  {His} {+trait} {parent} said {+manner}, "You need {+material} and {+material}."
  They ate {+food} and {+food}. Then they worked all {+weather} {+time}.
build end = At last, the {building} was {+adj} and {+color}, and they felt {+happy} and {+happy}.
  They put {a +adj} {+color} {+thing} on top. "{+wow}!" said {friend} {+manner}.
  Soon {a +adj} {+color} {+animal} lived in it. They gave it {+food} and {+food}.

learn start = <when> {hero} wanted to {skill} like {his} {+trait} {parent}.
  <when> {hero} saw {a +trait} {+job} {skill} at the {+adj} {place} and wanted to {skill} too.
  All {his} friends could {skill}, but {hero} could only {+activity}, {+activity} and {+activity}.
learn fail = {He} tried {+count} times near {a +adj} {+furniture} and felt {+sad} and {+sad}.
  {He} tried {+manner}, but with {a +sound} {he} fell into {+material} and {+material}.
  "I can not do it," {he} said {+manner} and hid under {a +adj} {+color} {+furniture}.
learn help = "I will help you," said {a +trait}, {+trait} {+job} {+manner}.
  {His} {+trait} friend {friend} came to help {him} with {a +adj} {+color} {+thing}.
  "Even {a +adj} {+color} {+wild} has to learn," said {his} {parent} {+manner}.
learn end = At last, {hero} could do it, and they ate {+food}, {+food} and {+food}.
  "{+wow}! I can do it!" said {hero} {+manner}. {He} felt {+happy} and {+happy}.
  Now {hero} can do it {+manner} and even helps {a +adj} {+color} {+animal}.

gift start = {hero} wanted to make {a adj} {color} {present} for {his} {+trait} {parent}.
  <when> {his} {+trait} {parent} felt {+sad}. {hero} wanted to make {a adj} {color} {present}.
  "I will make {a adj} {color} {present}!" {hero} told {his} {+trait} {parent} {+manner}.
gift plan = At the {+place} {he} saw {a +adj} {+color} {+thing}, but {he} had only {+count} coins.
  "You need {+material} and {+material}," said {a +trait} {+job} {+manner}.
  {His} {+trait} friend {friend} gave {him} some {+material} and {a +adj} {+nature}.
gift make = So {he} made the {present} with {+material}, {+material} and {a +adj} {+nature}.
  {He} sat behind {a +adj} {+furniture} and made the {present} out of {+material}.
  For {+count} {+weather} days, {he} worked {+manner} near {a +adj} {+color} {+surface}.
gift end = "{+wow}!" said {his} {parent} {+manner}. They felt {+happy} and {+happy}.
  {His} {parent} felt {+happy} and {+happy}. Then they ate {+food} and {+food}.
  {His} {parent} hugged {him} {+manner} and put it near {a +adj} {+color} {+furniture}.

trip start = <when> {hero} and {his} {+trait} {parent} went to the {place} with {+food}, \
{+food} and {+food}.
  "Let us go to the {place}," said {his} {parent}. {hero} took {+food}, {+food} and {a +adj} \
{+thing}.
  <when> {hero} went to the {place} with {his} {parent} to see {a +adj} {+animal}.
trip see = There {he} saw {+count} {+adj} {+color} boats and {a +adj} {color} {wild}.
  "Look, {a color} {wild}!" {he} said {+manner}. It ate {+food} and {+food}.
  {He} wanted to {+activity}, but saw {a +adj} {color} {wild} and ran to it {+manner}.
trip lost = Soon {he} was lost. {He} sat on {a +adj} {+color} {+furniture} and felt {+scared}.
  But then {he} was alone near the {+adj} {+place}. {He} felt {+scared} and {+scared}.
  {He} stopped for {a +adj} {+color} {+nature}, and then {his} {parent} was gone.
trip end = {A +trait} {+job} took {him} to {his} {parent}. They ate {+food}, and {hero} felt \
{+happy}.
  {A +trait} {+job} and {hero} found {his} {parent} near {a +adj} {+color} {+furniture}.
  "I will help you," said {a +trait} {+job} {+manner}. They found {his} {parent} at the {+adj} \
{+place}.

quarrel start = <when> {hero} and {his} {+trait} friend {friend} went to the {place} with \
{a adj} {toy}.
  {hero} and {friend} were {+trait} friends. <when> they played with {a adj} {toy}.
  <when> {friend} came to play with {hero} and {a adj} {color} {toy}.
quarrel fight = "I want to {+activity}!" said {hero}. {friend} wanted to {+activity} and \
{+activity}.
  Both wanted it, and with {a +sound} it fell off {a +adj} {+color} {+surface}.
  "Your {+adj} {+clothing} looks like {a +adj} {+wild}!" said {hero} {+manner}.
quarrel sorry = "A friend is better than {a +adj} {+thing}," said {his} {+trait} {parent} {+manner}.
  Then {he} made {friend} {a +color} card with {a +adj} {+animal} and {a +wild}.
  {He} took {+food}, {+food} and {a +adj} {+thing} to {friend}.
quarrel end = "I am sorry," said {hero} {+manner}. They ate {+food} and {+food} and felt {+happy}.
  {friend} hugged {him} {+manner}. Then they built {a +adj} {+building} with {+material}.
  So they made up and went to the {+adj} {+place} to {+activity} and {+activity}.
"""
"""The sentences: one rule a paragraph, one template a line."""
